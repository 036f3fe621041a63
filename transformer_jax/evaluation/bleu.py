"""BLEU in three senses, whose scores are not comparable, chrF, and error rates of what is read.

**BLEU** is sacreBLEU's (Post 2018): 13a tokens, cased, on detokenized text. Text that is written
without spaces has other tokens: Chinese sacreBLEU's `zh`, other languages characters. These have no
paper BLEU and no lowercased BLEU.

**Paper BLEU** is the score in the tables of Vaswani et al. 2017: multi-bleu.perl on Moses tokens.
Its steps are those of tensor2tensor's `utils/get_ende_bleu.sh`, applied to hypotheses and
references:

1. German only: convert Unicode punctuation to ASCII, as replace-unicode-punctuation.perl does, and
   also the low quotation mark, which that script forgets. get_ende_bleu.sh converts only the
   hypotheses: its reference, newstest2014.tok.de, already has plain quotation marks. A raw
   reference must be converted too (M. Popel in tensor2tensor issue 317, 2018-04-12).
2. Moses' tokenizer.perl for the target language, with its XML escapes.
3. German only: compound splitting, "rich-text" to "rich ##AT##-##AT## text".
4. BLEU-4 over the tokens, cased, without smoothing. The paper has one reference per line.

get_ende_bleu.sh does not handle French. For French and every other language that Moses knows,
steps 1 and 3 are skipped. A language that Moses does not know has no paper BLEU.

**Lowercased BLEU** is the score of papers on Multi30k (Elliott et al. 2016): multi-bleu.perl on
hypotheses and references that are lowercased, then normalized by Moses' normalize-punctuation.perl,
then tokenized by tokenizer.perl.

**Word and character error rates** are those of recordings and pictures that are read. The rate is
(S + D + I) / N over a whole text: substitutions, deletions and insertions of the cheapest way from
the references to the translations, and the references' number of words or characters. It may exceed
1.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import sacrebleu
import sacremoses
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses.corpus import NonbreakingPrefixes

from transformer_jax.errors import DataError
from transformer_jax.text.lines import is_text

# sacreBLEU's tokens of languages that are written without spaces. Its own for Japanese needs a
# dictionary, and scores would depend on whether it is installed.
CHARACTERS = "ja jp jpn jap th tha km khm lo lao my mya bur bo bod tib".split()
UNSPACED = dict.fromkeys("zh zho chi cmn yue lzh wuu".split(), "zh")
UNSPACED |= dict.fromkeys(CHARACTERS, "char")

RESAMPLES, SEED = 1_000, 0
TAILS = (2.5, 97.5)  # percentiles: an interval of 95 %


def tokens_of_language(language: str) -> str:
    """sacreBLEU's name of the tokens for a language, such as "de" or "zh-TW".

    Of several, such as "de+zh", characters if one of them does not separate words by spaces.
    """
    names = [re.split("[-_]", one)[0] for one in language.lower().split("+")]
    tokens = {UNSPACED.get(name, "13a") for name in names}
    return tokens.pop() if len(tokens) == 1 else "char"


class ErrorRate(NamedTuple):
    """A rate, and the interval of 95 % from resampled lines (Koehn 2004)."""

    rate: float  # 0: no errors
    low: float
    high: float


class Scores(NamedTuple):
    """Corpus scores of one translated set; `as_dict` converts them for a file."""

    direction: str  # "en→de"
    sentences: int
    bleu: float  # sacreBLEU, 0 to 100
    bleu_signature: str
    brevity_penalty: float  # of `bleu`; below 1 if translations are shorter than references
    paper_bleu: float | None  # 0 to 100; None: no Moses tokenizer for the target language
    paper_bleu_signature: str | None
    lowercased_bleu: float | None  # the same range and languages
    lowercased_bleu_signature: str | None
    chrf: float  # chrF2 (Popović 2015), 0 to 100
    chrf_signature: str
    # Of recordings and pictures that are read; None: of text.
    wer: ErrorRate | None = None
    cer: ErrorRate | None = None


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    src: str,
    tgt: str,
    others: Sequence[Sequence[str]] = (),
    is_read: bool = False,
) -> Scores:
    """Scores translations against one reference each, or against several.

    Args:
      hypotheses: detokenized translations in the order of the references; "" if there is none.
      references: raw references.
      src: language code of the source, such as "en"; used only in `direction`.
      tgt: language code of the target; chooses the steps of paper BLEU.
      others: further sets of references. An n-gram counts if it is in any of a line's references.
      is_read: whether to count word and character errors too, against `references` alone.

    Raises:
      DataError: the counts differ, there is nothing to score, or a reference is not text.
    """
    direction = f"{src}→{tgt}"
    sets = [references, *others]
    if any(isinstance(lines, str) for lines in (hypotheses, *sets)):
        raise DataError("BLEU takes lists of sentences, not one: put it in brackets.")
    for lines in sets:
        if len(hypotheses) != len(lines):
            raise DataError(
                f"{direction}: {len(hypotheses)} translations for {len(lines)} references; "
                "BLEU needs one translation a reference line, in order (an empty line for none)."
            )
    if not references:
        raise DataError(f"{direction}: no sentences to score; there are no references.")
    if not any(line.strip() for lines in sets for line in lines):
        raise DataError(f"{direction}: the references have no text, so nothing can be scored.")
    for line in (line for lines in sets for line in lines):
        if not is_text(line):
            raise DataError(f"{direction}: a reference has half of a surrogate pair: {line!r:.60}.")
    bleu_metric = BLEU(tokenize=tokens_of_language(tgt))
    chrf_metric = CHRF()
    bleu = bleu_metric.corpus_score(hypotheses, sets)
    chrf = chrf_metric.corpus_score(hypotheses, sets)
    paper, paper_signature = _moses_bleu(hypotheses, sets, tgt, lowercase=False)
    lowercased, lowercased_signature = _moses_bleu(hypotheses, sets, tgt, lowercase=True)
    return Scores(
        direction=direction,
        sentences=len(references),
        bleu=bleu.score,
        bleu_signature=str(bleu_metric.get_signature()),
        brevity_penalty=bleu.bp,
        paper_bleu=paper,
        paper_bleu_signature=paper_signature,
        lowercased_bleu=lowercased,
        lowercased_bleu_signature=lowercased_signature,
        chrf=chrf.score,
        chrf_signature=str(chrf_metric.get_signature()),
        wer=word_errors(hypotheses, references) if is_read else None,
        cer=character_errors(hypotheses, references) if is_read else None,
    )


def format_scores(scores: Scores) -> str:
    """The lines a user sees; each has name, value, direction and signature."""
    rows = (
        ("BLEU", scores.bleu, scores.bleu_signature),
        ("paper BLEU", scores.paper_bleu, scores.paper_bleu_signature),
        ("lowercased", scores.lowercased_bleu, scores.lowercased_bleu_signature),
        ("chrF2", scores.chrf, scores.chrf_signature),
    )
    errors = (
        (
            name,
            100 * found.rate,
            f"percent of the references'; 95 % interval {100 * found.low:.2f} to "
            f"{100 * found.high:.2f}",
        )
        for name, found in (("WER", scores.wer), ("CER", scores.cer))
        if found is not None
    )
    return "\n".join(
        f"{name:<10} {value:6.2f}  {scores.direction}  {signature}"
        for name, value, signature in (*rows, *errors)
        if value is not None
    )


def as_dict(scores: Scores) -> dict[str, Any]:
    """The scores by their names; error rates have rate, low and high; text has none."""
    found = scores._asdict()
    for name in ("wer", "cer"):
        errors = found.pop(name)
        found |= {name: errors._asdict()} if errors else {}
    return found


def paper_tokens(lines: Sequence[str], language: str) -> list[str]:
    """Lines after steps 1 to 3 of paper BLEU (see the module), with spaces between tokens."""
    tokenizer = sacremoses.MosesTokenizer(language)
    if language != "de":
        return [tokenizer.tokenize(line, return_str=True) for line in lines]
    ascii_punctuation = sacremoses.MosesPunctNormalizer(language).replace_unicode_punct
    plain = [ascii_punctuation(line).replace("„", '"') for line in lines]
    return [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in plain]


def lowercased_tokens(lines: Sequence[str], language: str) -> list[str]:
    """Lines lowercased, with Moses' punctuation and tokens, with spaces between tokens."""
    normalizer = sacremoses.MosesPunctNormalizer(language)
    tokenizer = sacremoses.MosesTokenizer(language)
    return [
        tokenizer.tokenize(normalizer.normalize(line.lower()), return_str=True) for line in lines
    ]


def split_compounds(tokens: str) -> str:
    """`perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g'`, byte for byte.

    A match consumes the letter after its hyphen: "a-b-c" becomes "a ##AT##-##AT## b-c". Perl
    without -C reads bytes, so a letter of two bytes allows two matches: "a-ü-b" is split twice.
    """
    split = re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", tokens.encode("utf-8", "surrogatepass"))
    return split.decode("utf-8", "surrogatepass")


def _moses_bleu(
    hypotheses: Sequence[str], sets: Sequence[Sequence[str]], tgt: str, lowercase: bool
) -> tuple[float, str] | tuple[None, None]:
    """Paper or lowercased BLEU, and its signature; None if Moses has no tokens of the language."""
    known = NonbreakingPrefixes().available_langs.values()
    if tgt not in known or tokens_of_language(tgt) != "13a":
        return None, None
    tokens_of = lowercased_tokens if lowercase else paper_tokens
    # `force`: these lines are tokenized on purpose.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    references = [tokens_of(lines, tgt) for lines in sets]
    result = metric.corpus_score(tokens_of(hypotheses, tgt), references)
    name, case, punctuation, compounds = "paper", "mixed", "raw", "|compounds:whole"
    if lowercase:
        name, case, punctuation, compounds = "lowercased", "lc", "normalized", ""
    elif tgt == "de":
        punctuation, compounds = "ascii", "|compounds:split"
    signature = (
        f"{name}-bleu|nrefs:{len(sets)}|case:{case}|punct:{punctuation}|tok:moses-{tgt}{compounds}"
        f"|smooth:none|sacremoses:{sacremoses.__version__}|sacrebleu:{sacrebleu.__version__}"
    )
    return result.score, signature


# Error rates -------------------------------------------------------------------------------------


def word_errors(hypotheses: Sequence[str], references: Sequence[str]) -> ErrorRate:
    """The word error rate; words are between white space, and case counts."""
    return _error_rate([x.split() for x in hypotheses], [x.split() for x in references])


def character_errors(hypotheses: Sequence[str], references: Sequence[str]) -> ErrorRate:
    """The character error rate; white space of any length is one space."""
    one_space = [[" ".join(x.split()) for x in lines] for lines in (hypotheses, references)]
    return _error_rate(*one_space)


def edit_distance(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """The fewest substitutions, deletions and insertions between both (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))  # row[i]: from reference[:0] to hypothesis[:i]
    for j, wanted in enumerate(reference, 1):
        diagonal, row[0] = row[0], j
        for i, found in enumerate(hypothesis, 1):
            cost = diagonal if found == wanted else 1 + min(diagonal, row[i - 1], row[i])
            diagonal, row[i] = row[i], cost
    return row[-1]


def _error_rate(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> ErrorRate:
    pairs = zip(hypotheses, references, strict=True)
    errors = np.array([edit_distance(*pair) for pair in pairs], np.float64)
    lengths = np.array(list(map(len, references)), np.float64)
    random = np.random.default_rng(SEED)
    drawn = random.multinomial(len(errors), np.full(len(errors), 1 / len(errors)), RESAMPLES)
    rates = drawn @ errors / np.maximum(drawn @ lengths, 1)
    low, high = np.percentile(rates, TAILS)
    return ErrorRate(float(errors.sum() / max(1, lengths.sum())), float(low), float(high))
