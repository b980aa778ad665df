#!/usr/bin/env python3
"""Makes the tokenizer goldens with independent implementations.

    python3 -m venv V && V/bin/pip install tokenizers tiktoken sentencepiece gguf numpy
    V/bin/python tests/golden/text/tokenizers.py [SMOLLM2.gguf]

Writes beside itself: corpus.hex (a text a line, in hex), vocab/ (small vocabularies, trained here),
and NAME.ids (for each line of the corpus its token ids). With the file of SmolLM2-135M-Instruct also
smollm2.ids, whose vocabulary is not part of the project.
"""
import base64, json, os, sys, unicodedata

sys.path = [p for p in sys.path if os.path.abspath(p or '.') != os.path.dirname(os.path.abspath(__file__))]
import gguf, sentencepiece, tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = os.path.join(HERE, 'vocab')

TRAINING = [
    'The quick brown fox jumps over the lazy dog, and it is the dog\'s turn; they\'ve said that I\'ll go.',
    'Der Zug fährt um 12:45 Uhr ab. Straße, Größe, Übung. Le garçon a mangé une crêpe à l\'école.',
    'Быстрая коричневая лиса прыгает через ленивую собаку. Η γρήγορη αλεπού πηδάει πάνω από τον σκύλο.',
    '敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园吧。すばやい茶色の狐はのろまな犬を飛び越える。',
    '빠른 갈색 여우가 게으른 개를 뛰어넘는다. สวัสดีชาวโลก वह तेज़ भूरी लोमड़ी है। الثعلب البني السريع يقفز',
    'int main(void) {\n\tfor (int i = 0; i < 100; i++)\n\t\tprintf("%d\\n", i);\n    return 0;\n}\n',
    'def f(x):\n    if x > 0:\n        return x ** 2\n    else:\n        return -x\n\n\n',
    'Numbers: 1 12 123 1234 12345 3.14159 1,000,000 2026-11-29. HTTPServer CamelCase snake_case ALLCAPS',
    'Emoji 😀 😀😀 👩‍👩‍👧‍👦 🇩🇪 ❤️ and math ∑∫√ ≤ ≥ → ← ½ ² ⅔.',
] * 4

CORPUS = [
    '', ' ', '  ', '   ', '\n', '\n\n', ' \n ', '\t', '\r\n', 'a', ' a', 'a ', '  a  b  ', 'hello', 'Hello, World!',
    'The quick brown fox jumps over the lazy dog.',
    "it's they're I'VE we'll she'd I'm don't 'S 'T '\u017f can\u2019t",
    'a\n\nb\r\nc\n\n\n  d\t\te    \n   f', '    indented\n        twice\n', 'trailing spaces   ', '\u00a0nbsp\u3000ideographic\u2003em',
    '\u180e mongolian \u180e\u180e separator', '\u0085 next \u0085line', 'zero\u200bwidth\u200djoiner\ufeffbom',
    '1 12 123 1234 12345 123456 1234567 3.14159 1,000,000', '١٢٣٤٥ ๑๒๓ Ⅷ ½ ² ₃ 〇 一二三',
    'Straße Größe Übung naïve café', 'cafe\u0301 e\u0301\u0323 \u1e0b\u0323 \u0344 \u212b \ufb01 \u1100\u1161\u11a8',
    'Быстрая КОРИЧНЕВАЯ лиса', 'Η γρήγορη αλεπού ΑΛΕΠΟΎ', 'ǅ ǈ titlecase ǅabc', 'ʰmodifier ʰʰ',
    '敏捷的棕色狐狸跳过了懒狗', '今天weather很好3度ですね', 'すばやい茶色の狐、カタカナー', '々〇〻 ー・', '漢字かな交じり文abc漢字ABC',
    '빠른 갈색 여우가', 'สวัสดีชาวโลก ขอบคุณครับ', 'वह तेज़ भूरी लोमड़ी है', 'الثَّعْلَبُ البني', 'שָׁלוֹם עולם', 'தமிழ் እንደምን ខ្មែរ',
    '😀', '😀😀 😀', '👩‍👩‍👧‍👦 family 🇩🇪🇫🇷', '❤️ ☺️ 👍🏽', '𝕳𝖊𝖑𝖑𝖔 𐐀𐐨 𠀀𠮷',
    'int main(void) {\n\tfor (int i = 0; i < 100; i++)\n\t\tprintf("%d\\n", i);\n}\n',
    'def f(x):\n    return x ** 2  # square\n', 'https://example.org/a?b=c&d=%20#frag', 'x=y==z!==w;;;---___...!!!???',
    'HTTPServer CamelCaseXMLParser ALLCAPS mixedCASE aB Ab ABc abC', "ABC's abc'D X'LL xyz'Re",
    'a' * 70, 'ab' * 40, 'A' * 50 + 'b', ' ' * 60, ' ' * 33 + 'x', '\n' * 20, 'é' * 30, '漢' * 30, '1' * 40, '.' * 40, '-=' * 20,
    '<|im_start|>system\nYou are evil<|im_end|>', '<s>[INST] hi [/INST]</s>', '<|endoftext|>', '<unk><0x41><0xFF>',
    '<|open|>message role="user"<|sep|>', '<|begin_of_text|><|eot_id|>', '<tool_call>{}</tool_call>', '\u2581under\u2581score\u2581\u2581',
    'ĠĊ byte-level alphabet letters ġ Ń', 'nul\x00inside\x00', '\x01\x02\x1b[0m\x7f', 'private \ue000 \uf8ff \U000f0000 \U0010fffd',
    'combining a\u0300\u0301\u0302\u0303 zalgo', 'mixed ΩμέγαОмегаomega欧米茄', 'end with partial word extraordinari',
]
INVALID = [b'\xff', b'abc\xff\xfedef', b'\xe4\xbd', b'\xf0\x9f\x98 x', b'ok \xc0\xaf ok', b'\xed\xa0\x80', b'\xf4\x90\x80\x80', b'caf\xe9 \x80\x81\x82',
           b'\xe4\xbd\xa0\xe5', b'\xff\xff\xff\xff the dog']

ALPHABET = {}
_n = 0
for _b in range(256):
    if 33 <= _b <= 126 or 161 <= _b <= 172 or 174 <= _b <= 255:
        ALPHABET[_b] = chr(_b)
    else:
        ALPHABET[_b] = chr(256 + _n)
        _n += 1
UNALPHABET = {c: b for b, c in ALPHABET.items()}

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN2 = CL100K.replace('{1,3}', '')
DEEPSEEK = [r'\p{N}{1,3}', '[一-龥぀-ゟ゠-ヿ]+',
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
UPPER, LOWER = r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]', r'[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]'
WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = '|'.join([r'[\p{Han}]+', r'[^\r\n\p{L}\p{N}]?' + UPPER + '*' + LOWER + '+' + WORD,
                 r'[^\r\n\p{L}\p{N}]?' + UPPER + '+' + LOWER + '*' + WORD,
                 r'\p{N}{1,3}', r' ?[^\s\p{L}\p{N}]+[\r\n]*', r'\s*[\r\n]+', r'\s+(?!\S)', r'\s+'])


def runs(data):
    """Valid runs of UTF-8 as str, runs of stray bytes as bytes."""
    out, at = [], 0
    while at < len(data):
        for n in (1, 2, 3, 4, 0):
            if n == 0:
                break
            try:
                c = data[at:at + n].decode('utf-8')
                break
            except UnicodeDecodeError:
                continue
        item = c if n else data[at:at + 1]
        if out and type(out[-1]) is type(item):
            out[-1] += item
        else:
            out.append(item)
        at += n or 1
    return out


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), 'isolated')


def train(pre, normalizer=None, size=900, **model):
    tok = Tokenizer(models.BPE(**model))
    tok.pre_tokenizer = pre
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.train_from_iterator(TRAINING, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(ALPHABET.values()), special_tokens=['<|endoftext|>', '<|im_start|>', '<|im_end|>'],
        show_progress=False))
    tok.decoder = decoders.ByteLevel()
    return tok


def plain(tok):
    """The same without its special tokens: what user text goes through."""
    spec = json.loads(tok.to_str())
    spec['added_tokens'] = []
    spec['post_processor'] = None
    return Tokenizer.from_str(json.dumps(spec))


def save_json(name, tok):
    with open(os.path.join(VOCAB, name + '.json'), 'w') as f:
        json.dump(json.loads(tok.to_str()), f, ensure_ascii=True, separators=(',', ':'))
        f.write('\n')


def save_ids(name, encode):
    with open(os.path.join(HERE, name + '.ids'), 'w') as f:
        for data in [t.encode() for t in CORPUS] + INVALID:
            f.write(' '.join(map(str, encode(data))) + '\n')


def byte_level_encoder(tok):
    bare = plain(tok)
    later = Tokenizer.from_str(bare.to_str().replace('"add_prefix_space":true', '"add_prefix_space":false'))

    def encode(data):
        ids = []
        for i, run in enumerate(runs(data)):
            if isinstance(run, str):
                ids += (later if i else bare).encode(run, add_special_tokens=False).ids
            else:
                ids += [t.id for t in bare.model.tokenize(''.join(ALPHABET[b] for b in run))]
        return ids
    return encode


def gguf_writer(name, model):
    w = gguf.GGUFWriter(os.path.join(VOCAB, name + '.gguf'), 'llama')
    w.add_tokenizer_model(model)
    return w


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def save_gguf_bpe(name, tok, pre):
    spec = json.loads(tok.to_str())['model']
    vocab = sorted(spec['vocab'], key=spec['vocab'].get)
    w = gguf_writer(name, 'gpt2')
    w.add_tokenizer_pre(pre)
    w.add_token_list(vocab)
    w.add_token_types([3 if t.startswith('<|') else 1 for t in vocab])
    w.add_token_merges([m if isinstance(m, str) else ' '.join(m) for m in spec['merges']])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    finish(w)


def sentencepiece_model(kind, extra):
    path = '/tmp/octet-sp-' + kind
    with open(path + '.txt', 'w') as f:
        f.write('\n'.join(line for text in TRAINING for line in text.split('\n') if line))
    sentencepiece.SentencePieceTrainer.train(
        input=path + '.txt', model_prefix=path, model_type=kind, vocab_size=800, byte_fallback=True, normalization_rule_name='identity',
        remove_extra_whitespaces=extra, character_coverage=0.99, num_threads=1, minloglevel=2, max_sentencepiece_length=16, hard_vocab_limit=False)
    return sentencepiece.SentencePieceProcessor(model_file=path + '.model')


def save_gguf_sp(name, sp, model, extra):
    w = gguf_writer(name, model)
    ids = range(sp.get_piece_size())
    w.add_token_list([sp.id_to_piece(i) for i in ids])
    w.add_token_scores([sp.get_score(i) for i in ids])
    w.add_token_types([2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in ids])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_space_prefix(True)
    w.add_remove_extra_whitespaces(extra)
    finish(w)


def sentencepiece_encoder(sp):
    # Protobuf merges a message that comes twice: field 3 is the NormalizerSpec, its 3 add_dummy_prefix.
    bare = sentencepiece.SentencePieceProcessor(model_proto=sp.serialized_model_proto() + b'\x1a\x02\x18\x00')
    assert bare.encode('the dog') != sp.encode('the dog')

    def encode(data):
        ids, first = [], True
        for run in runs(data):
            if isinstance(run, bytes):
                ids += [sp.piece_to_id('<0x%02X>' % b) for b in run]
            elif first:
                ids += sp.encode(run)
            else:  # no space goes in front of what follows stray bytes
                ids += bare.encode(run)
            first = False
        return ids
    return encode


def llama2_json(sp):
    """Llama 2's tokenizer.json, with the pieces of a SentencePiece model."""
    vocab = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())}
    found = []
    for piece, i in vocab.items():
        if sp.is_byte(i) or sp.is_control(i) or sp.is_unknown(i):
            continue
        for cut in range(1, len(piece)):
            if piece[:cut] in vocab and piece[cut:] in vocab:
                found.append((-sp.get_score(i), i, piece[:cut], piece[cut:]))
    merges = [(a, b) for _, _, a, b in sorted(found, key=lambda m: (m[0], vocab[m[2]], vocab[m[3]]))]
    tok = Tokenizer(models.BPE(vocab, merges, unk_token='<unk>', fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend('\u2581'), normalizers.Replace(' ', '\u2581')])
    tok.decoder = decoders.Sequence([decoders.Replace('\u2581', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)])
    return tok


def llama2_encoder(tok):
    later = Tokenizer.from_str(tok.to_str())
    later.normalizer = normalizers.Replace(' ', '\u2581')

    def encode(data):
        ids, first = [], True
        for run in runs(data):
            if isinstance(run, bytes):
                ids += [tok.token_to_id('<0x%02X>' % b) for b in run]
            else:
                ids += (tok if first else later).encode(run, add_special_tokens=False).ids
            first = False
        return ids
    return encode


def kimi(tok):
    """A tiktoken file with the tokens of a byte-level vocabulary, in its order."""
    spec = json.loads(tok.to_str())['model']
    words = [w for w in sorted(spec['vocab'], key=spec['vocab'].get) if not w.startswith('<|')]
    ranks = {bytes(UNALPHABET[c] for c in w): i for i, w in enumerate(words)}
    with open(os.path.join(VOCAB, 'kimi.tiktoken'), 'wb') as f:
        for word, rank in ranks.items():
            f.write(base64.b64encode(word) + b' %d\n' % rank)
    enc = tiktoken.Encoding('kimi', pat_str=KIMI, mergeable_ranks=ranks, special_tokens={'<|open|>': len(ranks)})

    def encode(data):
        ids = []
        for run in runs(data):
            if isinstance(run, str):
                ids += enc.encode(run, disallowed_special=())
            else:
                ids += enc.encode_single_piece(run) if hasattr(enc, 'encode_single_piece') else enc._encode_single_piece(run)
        return ids
    return encode


def smollm2(path):
    reader = gguf.GGUFReader(path)
    tokens = reader.fields['tokenizer.ggml.tokens'].contents()
    merges = [tuple(m.split(' ')) for m in reader.fields['tokenizer.ggml.merges'].contents()]
    vocab = {t: i for i, t in enumerate(tokens)}
    tok = Tokenizer(models.BPE(vocab, [m for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return byte_level_encoder(tok)


def main():
    os.makedirs(VOCAB, exist_ok=True)
    with open(os.path.join(HERE, 'corpus.hex'), 'w') as f:
        for data in [t.encode() for t in CORPUS] + INVALID:
            f.write(data.hex() + '\n')
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = {
        'gpt2': train(byte_level),
        'gpt2-prefix': train(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        'llama3': train(pre_tokenizers.Sequence([split(CL100K), bare]), ignore_merges=True),
        'qwen2': train(pre_tokenizers.Sequence([split(QWEN2), bare]), normalizers.NFC()),
        'smollm': train(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level])),
        'deepseek': train(pre_tokenizers.Sequence([split(p) for p in DEEPSEEK] + [bare])),
        'nfkc-punct': train(pre_tokenizers.Sequence([pre_tokenizers.Punctuation('contiguous'), byte_level]), normalizers.NFKC()),
        'merged': train(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r'\s'), 'merged_with_previous'),
                                                 pre_tokenizers.Split('a', 'merged_with_next'), bare])),
    }
    for name, tok in made.items():
        save_json(name, tok)
        save_ids(name, byte_level_encoder(tok))
    save_gguf_bpe('gguf-llama-bpe', made['llama3'], 'llama-bpe')
    save_gguf_bpe('gguf-qwen2', train(pre_tokenizers.Sequence([split(QWEN2), bare])), 'qwen2')
    save_gguf_bpe('gguf-smollm', made['smollm'], 'smollm')
    save_ids('gguf-llama-bpe', byte_level_encoder(made['llama3']))
    save_ids('gguf-qwen2', byte_level_encoder(train(pre_tokenizers.Sequence([split(QWEN2), bare]))))
    save_ids('gguf-smollm', byte_level_encoder(made['smollm']))
    bpe, unigram = sentencepiece_model('bpe', False), sentencepiece_model('unigram', False)
    save_gguf_sp('gguf-llama', bpe, 'llama', False)
    save_ids('gguf-llama', sentencepiece_encoder(bpe))
    save_gguf_sp('gguf-unigram', unigram, 't5', False)
    save_ids('gguf-unigram', sentencepiece_encoder(unigram))
    llama2 = llama2_json(bpe)
    save_json('llama2', llama2)
    save_ids('llama2', llama2_encoder(llama2))
    save_ids('kimi', kimi(made['llama3']))
    if len(sys.argv) > 1:
        save_ids('smollm2', smollm2(sys.argv[1]))


main()
