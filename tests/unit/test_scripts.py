"""Letters, marks and digits that deceive the eye are told of, and honest text of any language is not (AT-58)."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest

from hitl_guard import canonical
from hitl_guard.render import escape, warnings
from hitl_guard.render.scripts import in_ascii

HONEST = {
    "Amharic": "እንኳን ደህና መጡ",
    "Arabic": "تم دفع ١٢٣٫٥ ريال إلى ACME",
    "Arabic, vowelled": "بِسْمِ ٱللَّهِ",
    "Bengali": "২৬ টাকা পাঁচ জন",
    "Burmese": "မြွှေး ပေးပါ ၁၂",
    "Chinese": "请访问example.com查看VIP订单１２",
    "English": "Pay naïve café €82, 5 μm, 10 kΩ, Δt",
    "French": "Déjà vu, cœur, ça",
    "Georgian": "გამარჯობა",
    "German": "Straße, Übergröße",
    "Greek": "Καλημέρα το e-mail",
    "Greek, polytonic": "ᾧ ἄνδρα",
    "Hebrew": "ה-API של ACME מחיר 100 שקלים",
    "Hebrew, vowelled": "הַשָּׁמַיִם",
    "Hindi": "हिंदी ज़ूँ ५०० रुपये",
    "Japanese": "PCを使うTシャツは１２個、詳細はexample.comを参照",
    "Khmer": "ញ៉ាំ ស្ត្រី",
    "Korean": "SNS로 K팝 주문 韓國",
    "Persian": "۱۲۳ ریال پرداخت شد",
    "Russian": "Счёт № 5 для ACME, USB-порт, А3",
    "Serbian": "Џеп i džep",
    "Tamil": "வணக்கம்",
    "Thai": "ดูที่example.comได้ น้ำ ๑๒ LINEได้",
    "Tibetan": "བསྒྲུབས ༢༥",
    "Turkish": "İstanbul'da ışık",
    "Ukrainian": "п’ять їжаків",
    "Urdu": "ہفتہ ۵",
    "Vietnamese": "Nguyễn trả 5.000 đồng",
    "Yoruba": "ọ̀rọ̀ ẹ́",
    "Hebrew with an address": "חשבון: https://example.org",
}

THAI, KHMER = "\u0e01", "\u1780"
STACKS = {
    "over a letter": "a\u0300\u0301\u0302", "a tower": "a" + "\u0312\u0313" * 50, "one mark twice": "a\u0323\u0323",
    "one Thai mark": THAI + "\u0e47" * 3, "several Thai marks": THAI + "\u0e34\u0e47\u0e48\u0e4d\u0e31",
    "marks beside a letter": KHMER + "\u17c7\u17c8" * 5, "a ring": "a\u20dd", "a Cyrillic ring": "\u0430\u0488",
}


def signed(value: Any) -> bytes:
    return canonical.canonicalize(value)


def warned(text: str, slug: str) -> str | None:
    """Return the warning of a kind about a text as a value; the same is said of it as a name."""
    found = [one for one in warnings(signed({"a": text})) if one.startswith(f"{slug}: ")]
    assert found == [one for one in warnings(signed({text: 1})) if one.startswith(f"{slug}: ")]
    return found[0] if found else None


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST)
def test_at58_honest_text_of_a_language_is_shown_as_it_is_and_raises_no_warning(text: str) -> None:
    text = unicodedata.normalize("NFC", text)

    assert escape(text) == text
    assert warnings(signed({"text": text})) == ()


@pytest.mark.parametrize("language", [
    "Greek, polytonic", "Hebrew, vowelled", "Hindi", "Korean", "Vietnamese", "Yoruba",
])
def test_at58_text_that_is_not_composed_is_shown_as_it_is_too(language: str) -> None:
    text = unicodedata.normalize("NFD", HONEST[language])

    assert escape(text) == text


@pytest.mark.parametrize("text", STACKS.values(), ids=STACKS)
def test_at58_marks_that_would_cover_other_lines_are_escapes(text: str) -> None:
    shown = escape(f"x{text}y")

    assert json.loads(f'"{shown}"') == f"x{text}y"
    assert shown.count("\\u") > 0
    assert sum(unicodedata.category(one)[0] == "M" for one in shown) <= 8
    assert warned(text, "hidden-characters") is not None


@pytest.mark.parametrize(("text", "said"), [
    ("pay \u0430cme now", "\\u0430cme has CYRILLIC and LATIN"), ("Vis\u03b1", "Vis\\u03b1 has GREEK and LATIN"),
    ("\u0441\u0447\u0435t", "CYRILLIC and LATIN"), ("\u03b1\u0431", "CYRILLIC and GREEK"),
    ("g\u0585ld", "ARMENIAN and LATIN"), ("\U0001d41acme", "LATIN and MATHEMATICAL"),
    ("\uff41cme", "FULLWIDTH and LATIN"), ("\u04301cme", "CYRILLIC and LATIN"),
    ("p\u0301\u0430y", "CYRILLIC and LATIN"),
    ("p\u200b\u0430y", "CYRILLIC and LATIN"), ("\u540dp\u0430y\u540d", "p\\u0430y has CYRILLIC and LATIN"),
])
def test_at58_a_word_of_alphabets_that_look_alike_is_pointed_out(text: str, said: str) -> None:
    warning = warned(text, "mixed-script-word")

    assert warning is not None
    assert said in warning
    assert warning.isascii()


def test_at58_a_word_without_end_is_named_in_short() -> None:
    warning = warned("\u0430b" * 9_999, "mixed-script-word")

    assert warning is not None
    assert "..." in warning
    assert len(warning) < 600


def test_at58_a_slash_that_is_a_letter_ends_no_host_name() -> None:
    warning = warned("https://bank.com\u30celogin.evil.org", "mixed-script-host")

    assert warning is not None
    assert "EAST-ASIAN and LATIN" in warning


@pytest.mark.parametrize(("text", "said"), [
    ("\u09ea\u09e6", "\\u09ea\\u09e6 is 40"), ("pay \u0665\u0660", "\\u0665\\u0660 is 50"),
    ("\u062f\u0641\u0639 1\u0660\u0660", "1\\u0660\\u0660 is 100"), ("\uff11\uff12", "is 12"),
    ("\U0001d7ce", "is 0"), ("\u062f\u0641\u0639 \u0661\u066b\u0968", "is 1.2"), ("\u0e17\u0e35\u0e48 \u0665", "is 5"),
])
def test_at58_digits_that_the_text_does_not_explain_are_pointed_out_with_their_value(text: str, said: str) -> None:
    warning = warned(text, "other-digits")

    assert warning is not None
    assert said in warning
    assert warning.isascii()


def test_a_number_is_read_digit_by_digit() -> None:
    assert in_ascii("-\u0661\u066c\u0662\u0663\u0664\u066b\u0665") == "-1,234.5"


@pytest.mark.parametrize(("text", "count"), [
    ("to account \u05d0 100 200", 1), ("invoice \u0627\u0628 7", 2), ("xyz \U0001e900", 1),
])
def test_at58_letters_that_turn_the_order_of_a_text_are_pointed_out(text: str, count: int) -> None:
    warning = warned(text, "right-to-left")

    assert warning is not None
    assert f"({count} in all)" in warning
