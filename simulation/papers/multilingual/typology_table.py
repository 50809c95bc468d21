"""What textbooks say of 29 languages: 21 features, most of them chapters of WALS.

Facts, written down by hand for this project, after the questions that the World Atlas of Language
Structures asks (Dryer & Haspelmath 2013; the number is the chapter) and ISO 15924 for scripts.
A language that no value names is one for which we know no plain answer; it is left out of that
feature, never guessed. Codes are ISO 639-3.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LANGUAGES = {
    "amh": "Amharic",
    "ara": "Arabic",
    "bul": "Bulgarian",
    "deu": "German",
    "ell": "Greek",
    "eng": "English",
    "fra": "French",
    "hau": "Hausa",
    "heb": "Hebrew",
    "hin": "Hindi",
    "ibo": "Igbo",
    "ita": "Italian",
    "lin": "Lingala",
    "lug": "Luganda",
    "orm": "Oromo",
    "por": "Portuguese",
    "run": "Rundi",
    "rus": "Russian",
    "sna": "Shona",
    "som": "Somali",
    "spa": "Spanish",
    "swa": "Swahili",
    "tha": "Thai",
    "tir": "Tigrinya",
    "tur": "Turkish",
    "urd": "Urdu",
    "vie": "Vietnamese",
    "yor": "Yoruba",
    "zho": "Chinese",
}
# The two-letter codes that data sets use.
SHORT = {
    "am": "amh",
    "ar": "ara",
    "bg": "bul",
    "de": "deu",
    "el": "ell",
    "en": "eng",
    "es": "spa",
    "fr": "fra",
    "ha": "hau",
    "he": "heb",
    "hi": "hin",
    "ig": "ibo",
    "it": "ita",
    "lg": "lug",
    "ln": "lin",
    "om": "orm",
    "pt": "por",
    "rn": "run",
    "ru": "rus",
    "sn": "sna",
    "so": "som",
    "sw": "swa",
    "th": "tha",
    "ti": "tir",
    "tr": "tur",
    "ur": "urd",
    "vi": "vie",
    "yo": "yor",
    "zh": "zho",
}


@dataclass(frozen=True)
class Feature:
    """One question and who answers it how.

    Attributes:
        name: The question.
        source: WALS chapter, or the standard.
        values: Answer -> the languages that give it, codes with spaces between.
    """

    name: str
    source: str
    values: Mapping[str, str]


_BANTU = "lin lug run sna swa"
_ROMANCE = "fra ita por spa"
FEATURES = (
    Feature(
        "order of subject, object and verb",
        "WALS 81A",
        {
            "SVO": f"{_BANTU} {_ROMANCE} bul eng hau heb ibo rus tha vie yor zho",
            "SOV": "amh hin orm som tir tur urd",
            "VSO": "ara",
            "none dominant": "deu ell",
        },
    ),
    Feature(
        "order of adposition and noun phrase",
        "WALS 85A",
        {
            "prepositions": f"{_BANTU} {_ROMANCE} "
            "ara bul deu ell eng hau heb ibo rus tha tir vie yor",
            "postpositions": "hin orm tur urd",
            "both": "amh zho",
        },
    ),
    Feature(
        "order of genitive and noun",
        "WALS 86A",
        {
            "genitive first": "amh hin tur urd zho",
            "noun first": f"{_BANTU} {_ROMANCE} ara bul deu ell hau heb ibo orm rus tha vie yor",
            "both": "eng som tir",
        },
    ),
    Feature(
        "order of adjective and noun",
        "WALS 87A",
        {
            "adjective first": "amh bul deu ell eng hau hin rus tir tur urd zho",
            "noun first": f"{_BANTU} {_ROMANCE} ara heb ibo orm som tha vie yor",
        },
    ),
    Feature(
        "order of demonstrative and noun",
        "WALS 88A",
        {
            "demonstrative first": f"{_ROMANCE} amh ara bul deu ell eng hin rus tir tur urd zho",
            "noun first": "heb ibo lin lug orm sna swa tha vie yor",
            "suffix": "som",
            "both": "hau",
        },
    ),
    Feature(
        "order of numeral and noun",
        "WALS 89A",
        {
            "numeral first": f"{_ROMANCE} "
            "amh ara bul deu ell eng heb hin rus som tir tur urd vie zho",
            "noun first": f"{_BANTU} hau ibo orm tha yor",
        },
    ),
    Feature(
        "order of relative clause and noun",
        "WALS 90A",
        {
            "noun first": f"{_BANTU} {_ROMANCE} "
            "ara bul deu ell eng hau heb ibo orm rus som tha vie yor",
            "clause first": "amh tir tur zho",
            "correlative": "hin urd",
        },
    ),
    Feature(
        "tone",
        "WALS 13A",
        {
            "tonal": "hau ibo lin lug orm run sna som tha vie yor zho",
            "not tonal": f"{_ROMANCE} amh ara bul deu ell eng heb hin rus swa tir tur urd",
        },
    ),
    Feature(
        "number of genders or noun classes",
        "WALS 30A",
        {
            "none": "ibo tha tur vie yor zho",
            "two": f"{_ROMANCE} amh ara hau heb hin orm som tir urd",
            "three": "bul deu ell eng rus",
            "five or more": _BANTU,
        },
    ),
    Feature(
        "case inflection of nouns",
        "WALS 49A",
        {
            "none": f"{_BANTU} {_ROMANCE} bul hau heb ibo tha vie yor zho",
            "two to four": "amh ara deu ell eng hin som urd",
            "five or more": "orm rus tur",
        },
    ),
    Feature(
        "where inflection stands",
        "WALS 26A",
        {
            "mostly suffixes": f"{_ROMANCE} amh bul deu ell eng heb hin orm rus som tur urd zho",
            "mostly prefixes": _BANTU,
            "both": "ara",
            "little of it": "hau tha vie yor",
        },
    ),
    Feature(
        "definite article",
        "WALS 37A",
        {
            "there is one": f"{_ROMANCE} amh ara bul deu ell eng hau heb som tir",
            "there is none": "hin ibo lin orm rus tha tur urd yor zho",
        },
    ),
    Feature(
        "coding of plural",
        "WALS 33A",
        {
            "suffix": f"{_ROMANCE} amh bul deu ell eng hau heb hin orm rus som tir tur urd zho",
            "prefix": _BANTU,
            "stem": "ara",
            "word": "vie yor",
        },
    ),
    Feature(
        "subject pronoun",
        "WALS 101A",
        {
            "needed": "deu eng fra ibo rus yor",
            "affix on the verb": "amh ara bul ell ita lin lug orm por run sna spa swa tir tur",
            "may be left out": "hin tha urd vie zho",
        },
    ),
    Feature(
        "numeral classifiers",
        "WALS 55A",
        {
            "needed": "tha vie zho",
            "optional": "tur",
            "absent": f"{_BANTU} {_ROMANCE} "
            "amh ara bul deu ell eng hau heb hin ibo orm rus som tir urd yor",
        },
    ),
    Feature(
        "negation of a statement",
        "WALS 112A",
        {
            "affix": "amh ibo lug orm run sna swa tir tur",
            "word": f"{_ROMANCE} ara bul deu ell eng hau heb hin lin rus som tha urd vie yor zho",
        },
    ),
    Feature(
        "front rounded vowels",
        "WALS 11A",
        {
            "yes": "deu fra tur zho",
            "no": f"{_BANTU} amh ara bul ell eng hau heb hin ibo ita orm por rus som spa tha "
            "tir urd vie yor",
        },
    ),
    Feature(
        "nasal vowels",
        "WALS 10A",
        {
            "yes": "fra hin por urd yor",
            "no": f"{_BANTU} amh ara bul deu ell eng hau heb ibo ita orm rus som spa tha tir "
            "tur vie zho",
        },
    ),
    Feature(
        "ejectives or implosives",
        "WALS 7A",
        {
            "yes": "amh hau orm sna tir vie",
            "no": f"{_ROMANCE} ara bul deu ell eng heb hin ibo rus som swa tha tur urd yor zho",
        },
    ),
    Feature(
        "pharyngeal consonants",
        "WALS 19A",
        {
            "yes": "ara som tir",
            "no": f"{_BANTU} {_ROMANCE} "
            "amh bul deu ell eng hau heb hin ibo orm rus tha tur urd vie yor zho",
        },
    ),
    Feature(
        "script",
        "ISO 15924",
        {
            "Latn": f"{_BANTU} {_ROMANCE} deu eng hau ibo orm som tur vie yor",
            "Cyrl": "bul rus",
            "Arab": "ara urd",
            "Ethi": "amh tir",
            "Deva": "hin",
            "Grek": "ell",
            "Hani": "zho",
            "Hebr": "heb",
            "Thai": "tha",
        },
    ),
)
