#include "engine/base/hash.h"

#include <string.h>

/* SipHash-2-4 of the n bytes 00 01 ... n-1 under the key 00 01 ... 0f, n = 0 ... 63: the published
 * test case, computed by OpenSSL 3.0 (openssl mac -macopt size:8 or size:16 SIPHASH). */
static const oct_hash_key key = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};

/* clang-format off */
static const guint64 wanted64[64] = {
  0x726fdb47dd0e0e31u, 0x74f839c593dc67fdu, 0x0d6c8009d9a94f5au, 0x85676696d7fb7e2du,
  0xcf2794e0277187b7u, 0x18765564cd99a68du, 0xcbc9466e58fee3ceu, 0xab0200f58b01d137u,
  0x93f5f5799a932462u, 0x9e0082df0ba9e4b0u, 0x7a5dbbc594ddb9f3u, 0xf4b32f46226bada7u,
  0x751e8fbc860ee5fbu, 0x14ea5627c0843d90u, 0xf723ca908e7af2eeu, 0xa129ca6149be45e5u,
  0x3f2acc7f57c29bdbu, 0x699ae9f52cbe4794u, 0x4bc1b3f0968dd39cu, 0xbb6dc91da77961bdu,
  0xbed65cf21aa2ee98u, 0xd0f2cbb02e3b67c7u, 0x93536795e3a33e88u, 0xa80c038ccd5ccec8u,
  0xb8ad50c6f649af94u, 0xbce192de8a85b8eau, 0x17d835b85bbb15f3u, 0x2f2e6163076bcfadu,
  0xde4daaaca71dc9a5u, 0xa6a2506687956571u, 0xad87a3535c49ef28u, 0x32d892fad841c342u,
  0x7127512f72f27cceu, 0xa7f32346f95978e3u, 0x12e0b01abb051238u, 0x15e034d40fa197aeu,
  0x314dffbe0815a3b4u, 0x027990f029623981u, 0xcadcd4e59ef40c4du, 0x9abfd8766a33735cu,
  0x0e3ea96b5304a7d0u, 0xad0c42d6fc585992u, 0x187306c89bc215a9u, 0xd4a60abcf3792b95u,
  0xf935451de4f21df2u, 0xa9538f0419755787u, 0xdb9acddff56ca510u, 0xd06c98cd5c0975ebu,
  0xe612a3cb9ecba951u, 0xc766e62cfcadaf96u, 0xee64435a9752fe72u, 0xa192d576b245165au,
  0x0a8787bf8ecb74b2u, 0x81b3e73d20b49b6fu, 0x7fa8220ba3b2eceau, 0x245731c13ca42499u,
  0xb78dbfaf3a8d83bdu, 0xea1ad565322a1a0bu, 0x60e61c23a3795013u, 0x6606d7e446282b93u,
  0x6ca4ecb15c5f91e1u, 0x9f626da15c9625f3u, 0xe51b38608ef25f57u, 0x958a324ceb064572u,
};

static const oct_hash128 wanted128[64] = {
  {0xe6a825ba047f81a3u, 0x930255c71472f66du}, {0x44af996bd8c187dau, 0x45fc229b11597634u},
  {0xc75da4a48d227781u, 0xe4ff0af6de8ba3fcu}, {0x4ea967520cb6709cu, 0x51ed8529b0b6335fu},
  {0xaf8f9c2dc16481f8u, 0x7955cd7b7c6e0f7du}, {0x886f778059876813u, 0x27960e69077a5254u},
  {0x1386208b33caee14u, 0x5ea1d78f30a05e48u}, {0x53c1dbd8beebf1a1u, 0x3982f01fa64ab8c0u},
  {0x61f55862baa9623bu, 0xb49714f364e2830fu}, {0xabbad90a06994426u, 0xed716dbb028b7fc4u},
  {0x56691478c30d1100u, 0xbafbd0f3d34754c9u}, {0x77666b3868c55101u, 0x18dce5816fdcb4a2u},
  {0x58f35e9066b226d6u, 0x25c13285f64d6382u}, {0x108bc0e947e26998u, 0xf752b9c44f9329d0u},
  {0x9cded766aceffc31u, 0x024949e45f48c77eu}, {0x11a8b03399e99354u, 0xd9c3cf970fec087eu},
  {0xbb54b067caa4e26eu, 0x77052385bf1533fdu}, {0x98b88d73e8063d47u, 0x4077e47ac466c054u},
  {0x8548bf23e4e526a4u, 0x23f7aefe81a44d29u}, {0xb0fa65cf31770178u, 0xb12e51528920d574u},
  {0x7390223f83fc259eu, 0xeb3938e8a544933eu}, {0x215a52be5a498e56u, 0x121d073ecd14228au},
  {0x9a6bd15245b5294au, 0xae0aff8e52109c46u}, {0xe0f5a9d5dd84d1c9u, 0x1c69bf9a9ae28ccfu},
  {0xd850bd78ae79b42du, 0xad32618a178a2a88u}, {0x7b445e2d045fce8eu, 0x6f8f8dcbeab95150u},
  {0xe807c3b3b4530b9cu, 0x661f147886e0ae7eu}, {0xe4eaa669af48f2abu, 0x94eb9e122febd3bfu},
  {0x884b576816da6406u, 0xf4ae587302f335b9u}, {0xe97d33bfc49d4baau, 0xb76a7c463cfdd40cu},
  {0xde6baf1f477f5ceau, 0x87226d68d4d71a2bu}, {0xfcfa233218b03929u, 0x353dc4524fde2317u},
  {0x3efcea5eca56397cu, 0x68eb4665559d3e36u}, {0x321cf0467107c677u, 0xcfffa94e5f9db6b6u},
  {0xdf7e84b86c98a637u, 0xde549b30f1f02509u}, {0xf9a8a99de6f005a7u, 0xc88c3c922e1a2407u},
  {0x4648c4291f7dc43du, 0x11674f90ed769e1eu}, {0x1a0efce601bf620du, 0x2b69d3c551473c0du},
  {0x9e667cca8b46038cu, 0xb5e7be4b085efde4u}, {0x9c2caf3bb95b8a52u, 0xd92bd2d0e5cc7344u},
  {0xad5dc9951e306adfu, 0xd83b91c6c80cae97u}, {0x397f852c90891180u, 0xdbb6705e289135e7u},
  {0xbb31c2c96a3417e6u, 0x5b0ccacc34ae5036u}, {0xaa21b7ef3734d927u, 0x89df5aecdc211840u},
  {0x785e9ced9d7d2389u, 0x4273cc66b1c9b1d8u}, {0x657d5ebf91806d4au, 0x4cb150a294fa8911u},
  {0x89aee75560f9330eu, 0x022949cf3d0efc3fu}, {0xd1190b722b431ce6u, 0x1b1563dc4bd8c88eu},
  {0xcf82f749f5aee5f7u, 0x169b2608a6559037u}, {0x4fa5b7d00f038d43u, 0x03641a20adf237a8u},
  {0xe304bf4feed390a5u, 0x3f4286f2270d7e24u}, {0xc493fe72a1c1e25fu, 0x38f5f9ae7cd35cb1u},
  {0x6eb306bd5c32972cu, 0x7c013a8bd03d13b2u}, {0x94ca6b7a2214c892u, 0x9ed32a009f65f09fu},
  {0x8c32d80b1150e8dcu, 0x871d91d64108d5fbu}, {0x1279dac78449f167u, 0xda832592b52be348u},
  {0xe94ed572cff23819u, 0x362a1da96f16947eu}, {0xfe49ed46961e4874u, 0x8e6904163024620fu},
  {0xd8d6a998dea5fc57u, 0x1d8a3d58d0386400u}, {0xbe1cdcef1cdeec9fu, 0x595357d9743676d4u},
  {0x53f128eb000c04e3u, 0x40e772d8cb73ca66u}, {0xfe1d836a9a009776u, 0x7a0f6793591ca9ccu},
  {0xa067f52123545358u, 0xbd5947f0a447d505u}, {0x4a83502f77d15051u, 0x7cbd3f979a063e50u},
};
/* clang-format on */

static void
fill(guint8 message[64]) {
  for (guint i = 0; i < 64; i++)
    message[i] = (guint8)i;
}

static void
siphash_64(void) {
  guint8 message[64];
  fill(message);
  for (gsize n = 0; n < 64; n++)
    g_assert_cmphex(oct_hash64(key, message, n), ==, wanted64[n]);
  g_assert_cmphex(oct_hash64(key, NULL, 0), ==, wanted64[0]);
}

static void
siphash_128(void) {
  guint8 message[64];
  fill(message);
  for (gsize n = 0; n < 64; n++) {
    oct_hash128 got = oct_hash128_of(key, message, n);
    g_assert_cmphex(got.lo, ==, wanted128[n].lo);
    g_assert_cmphex(got.hi, ==, wanted128[n].hi);
  }
}

/* A link of a chain is the hash of the previous hash's 16 bytes followed by the data. */
static void
chain_is_concatenation(void) {
  guint8 message[64];
  fill(message);
  oct_hash128 previous = {wanted64[1], wanted64[2]};
  for (gsize n = 0; n < 48; n++) {
    guint8 joined[64];
    memcpy(joined, &previous, 16);
    memcpy(joined + 16, message, n);
    g_assert_true(oct_hash128_equal(oct_hash128_chain(key, previous, message, n),
                                    oct_hash128_of(key, joined, 16 + n)));
  }
}

static void
key_and_data_matter(void) {
  oct_hash_key other = {key.k0 ^ 1, key.k1}, third = {key.k0, key.k1 ^ 1};
  oct_hash128 h = oct_hash128_of(key, "page", 4);
  g_assert_false(oct_hash128_equal(h, oct_hash128_of(other, "page", 4)));
  g_assert_false(oct_hash128_equal(h, oct_hash128_of(third, "page", 4)));
  g_assert_false(oct_hash128_equal(h, oct_hash128_of(key, "pagf", 4)));
  g_assert_false(oct_hash128_equal(h, oct_hash128_of(key, "page", 3)));
  oct_hash128 lo = {h.lo, h.hi ^ 1}, hi = {h.lo ^ 1, h.hi};
  g_assert_false(oct_hash128_equal(h, lo));
  g_assert_false(oct_hash128_equal(h, hi));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/hash/is-siphash-2-4-64", siphash_64);
  g_test_add_func("/base/hash/is-siphash-2-4-128", siphash_128);
  g_test_add_func("/base/hash/chain-hashes-the-concatenation", chain_is_concatenation);
  g_test_add_func("/base/hash/every-part-of-key-data-and-hash-matters", key_and_data_matter);
  return g_test_run();
}
