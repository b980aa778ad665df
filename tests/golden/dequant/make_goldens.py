#!/usr/bin/env python3
"""Writes the goldens of the dequantisers: stored bytes, and the values that programs which share no
code with Octet read from them.

    python3 -m venv scratch && scratch/bin/pip install numpy ml_dtypes gguf safetensors compressed-tensors
    scratch/bin/python make_goldens.py [FOLDER]        (default: the folder of this script)

Who computes what:
  GGUF's types                     gguf.quants (the package of the format's own project)
  f16, bf16, fp8, e8m0, fp4        ml_dtypes, and torch where it has the type
  MXFP4, NVFP4, pack-quantized     compressed_tensors' unpacking and dequantisation, in float32
  AWQ, GPTQ                        integers that are packed here as those formats say, so that the
                                   values are known before they are packed
Seeds are fixed: two runs give equal bytes.
"""
import os
import sys

import gguf
import ml_dtypes
import numpy as np
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from safetensors.numpy import save_file

FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
random = np.random.default_rng(20)


def save(name, **tensors):
    path = os.path.join(FOLDER, name + ".safetensors")
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, path)
    print(f"{os.path.getsize(path):8d} {path}")


def same(a, b):
    """Equal values; zeros of either sign and any NaN count as equal."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    assert a.shape == b.shape and np.all((a == b) | (np.isnan(a) & np.isnan(b)))


# --- plain types ---------------------------------------------------------------------------------
def plain():
    all8 = np.arange(256, dtype=np.uint8)
    e4m3 = all8.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    e5m2 = all8.view(ml_dtypes.float8_e5m2).astype(np.float32)
    e8m0 = all8.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    same(e4m3, torch.from_numpy(all8.copy()).view(torch.float8_e4m3fn).float())
    same(e5m2, torch.from_numpy(all8.copy()).view(torch.float8_e5m2).float())
    # Every exponent with a few mantissas, both signs.
    f16 = np.array([s << 15 | e << 10 | m for s in (0, 1) for e in range(32)
                    for m in (0, 1, 2, 3, 511, 512, 513, 1022, 1023)], np.uint16)
    bf16 = np.array([s << 15 | e << 7 | m for s in (0, 1) for e in list(range(4)) + list(range(120, 136))
                     + [254, 255] for m in (0, 1, 63, 64, 65, 127)], np.uint16)
    save("plain",
         f16=f16, f16_values=f16.view(np.float16).astype(np.float32),
         bf16=bf16, bf16_values=bf16.view(ml_dtypes.bfloat16).astype(np.float32),
         e4m3=all8, e4m3_values=e4m3, e5m2=all8, e5m2_values=e5m2, e8m0=all8, e8m0_values=e8m0)


# --- from float32 --------------------------------------------------------------------------------
def narrow():
    """What ml_dtypes rounds float32 to: near every code, at every tie, and beyond the range."""
    values = [0.0, -0.0, 1e-30, -1e-30, 1e30]
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn):
        codes = np.arange(256 if dtype == ml_dtypes.float8_e4m3fn else 16, dtype=np.uint8)
        finite = codes.view(dtype).astype(np.float32)
        finite = np.unique(finite[np.isfinite(finite)])
        middle = (finite[1:] + finite[:-1]) / 2
        for x in (finite, middle, np.nextafter(middle, np.float32(np.inf)),
                  np.nextafter(middle, np.float32(-np.inf))):
            values.extend(x.tolist())
    values = np.array(values, np.float32)
    e4m3 = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    e2m1 = np.clip(values, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    halves = np.concatenate([values, random.normal(0, 1, 200).astype(np.float32) *
                             np.exp2(random.integers(-30, 18, 200)).astype(np.float32)])
    with np.errstate(over="ignore"):
        f16 = halves.astype(np.float16).view(np.uint16)
    save("narrow", values=values, e4m3=e4m3, e2m1=e2m1, halves=halves, f16=f16,
         bf16=halves.astype(ml_dtypes.bfloat16).view(np.uint16))


# --- GGUF's blocks -------------------------------------------------------------------------------
def gguf_blocks():
    # Bytes of each block that hold float16 scales.
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}
    for name, places in halves.items():
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, n = (2, 2) if block == 256 else (3, 3)
        data = random.integers(0, 256, (rows, n, size), dtype=np.uint8)
        scales = [0.0, 6e-8, -6.1e-5, 1.0, -65504.0, 0.0123, 3.7, -0.5, 2.0 ** -14]
        for place in places:
            for i in range(rows * n):
                value = np.float16(scales[(i * 2 + place) % len(scales)] * (1 if place < 100 else 0.7))
                data[i // n, i % n, place:place + 2] = np.frombuffer(value.tobytes(), np.uint8)
        if name == "MXFP4":  # every kind of scale but NaN
            data[..., 0] = np.array([0, 1, 2, 100, 127, 128, 150, 252, 253]).reshape(rows, n)
        data = data.reshape(rows, n * size)
        with np.errstate(over="ignore", invalid="ignore"):
            values = gguf.quants.dequantize(data, kind)
        assert values.shape == (rows, n * block) and values.dtype == np.float32
        save("gguf-" + name.lower(), blocks=data, values=values)
    # What its own quantisers write, so that no real block is missed.
    weights = random.normal(0, 0.05, (2, 96)).astype(np.float32)
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        kind = gguf.GGMLQuantizationType[name]
        data = gguf.quants.quantize(weights, kind)
        save("gguf-" + name.lower() + "-real", blocks=data, values=gguf.quants.dequantize(data, kind))


# --- 8-bit floats with scales --------------------------------------------------------------------
def fp8():
    codes = random.integers(0, 256, (3, 300), dtype=np.uint8)
    codes[(codes & 0x7f) == 0x7f] = 0
    scales = random.normal(0, 0.01, (3, 3)).astype(np.float32)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float()
    by_block = values * torch.from_numpy(scales).repeat_interleave(128, 1)[:, :300]
    by_row = values * torch.from_numpy(scales[:, :1].copy())
    save("fp8", codes=codes, scales=scales, values=by_block.numpy(), row_values=by_row.numpy())


# --- 4-bit floats --------------------------------------------------------------------------------
def fp4():
    packed = random.integers(0, 256, (4, 48), dtype=np.uint8)
    scale = np.concatenate([[0, 1, 2, 3], random.integers(100, 140, 5), [250, 251, 252]]).astype(np.uint8)
    scale = scale.reshape(4, 3)
    codes = unpack_fp4_from_uint8(torch.from_numpy(packed), 4, 96, dtype=torch.float32)
    # float32 has what compressed_tensors' bfloat16 scales have.
    factors = decompress_mx_scale(torch.from_numpy(scale)).float().repeat_interleave(32, 1)
    save("mxfp4", codes=packed, scales=scale, values=(codes * factors).numpy())
    scale = random.integers(1, 0x7e, (4, 6), dtype=np.uint8)
    divisor = np.float32(1234.567)
    factors = torch.from_numpy(scale).view(torch.float8_e4m3fn).float()
    by_divisor = codes * (factors / torch.tensor(divisor)).repeat_interleave(16, 1)
    by_factor = codes * (factors * torch.tensor(np.float32(1 / 777.7))).repeat_interleave(16, 1)
    save("nvfp4", codes=packed, scales=scale, divisor=np.array([divisor]),
         factor=np.array([1 / 777.7], np.float32), values=by_divisor.numpy(),
         factor_values=by_factor.numpy())


# --- 4-bit integers ------------------------------------------------------------------------------
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(nibbles, axis, order=range(8)):
    """Eight neighbours along `axis` into one word; place i holds neighbour order[i]."""
    moved = np.moveaxis(nibbles, axis, -1).astype(np.uint64)
    moved = moved.reshape(*moved.shape[:-1], -1, 8)
    words = sum(moved[..., order[i]] << np.uint64(4 * i) for i in range(8))
    return np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis)


def int4():
    rows, columns, group = 24, 256, 128
    codes = random.integers(0, 16, (columns, rows))
    zeros = random.integers(0, 16, (columns // group, rows))
    scales = random.normal(0, 0.02, (columns // group, rows)).astype(np.float16)
    index = np.arange(columns) // group

    def value(group_of):
        return ((codes - zeros[group_of]).astype(np.float32) * scales[group_of].astype(np.float32)).T

    some = np.array([0, 1, 5, 7, 8, 22, 23])  # rows whose values are kept
    save("awq", qweight=pack(codes, 1, AWQ_ORDER), qzeros=pack(zeros, 1, AWQ_ORDER), scales=scales,
         rows=some, values=value(index)[some])
    # GPTQ's first format stores zeros less one; g_idx gives each input's group.
    zeros = random.integers(1, 17, zeros.shape)
    order = random.permutation(index).astype(np.int32)
    save("gptq", qweight=pack(codes, 0), qzeros=pack(zeros - 1, 1), scales=scales, g_idx=order,
         rows=some, values=value(order)[some], values_in_order=value(index)[some])
    # compressed-tensors: [outputs, inputs], signed codes.
    signed = torch.from_numpy((codes.T - 8).astype(np.int8))
    zero = torch.from_numpy(random.integers(-8, 8, (rows, columns // group)).astype(np.int8))
    scale = torch.from_numpy(scales.T.copy()).bfloat16()
    packed, packed_zero = pack_to_int32(signed, 4), pack_to_int32(zero, 4, packed_dim=0)
    back = unpack_from_int32(packed, 4, torch.Size(signed.shape)).float()
    zero_back = unpack_from_int32(packed_zero, 4, torch.Size(zero.shape), packed_dim=0).float()
    wide = scale.float().repeat_interleave(group, 1)
    save("packed-int4", weight_packed=packed.numpy(), weight_zero_point=packed_zero.numpy(),
         weight_scale=scale.view(torch.uint16).numpy(), rows=some,
         values=((back - zero_back.repeat_interleave(group, 1)) * wide).numpy()[some],
         values_symmetric=(back * wide).numpy()[some])


plain()
narrow()
gguf_blocks()
fp8()
fp4()
int4()
