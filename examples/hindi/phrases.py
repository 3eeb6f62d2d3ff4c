"""Household phrases in English and Hindi: a small grammar of commands, and fixed phrases.

In Hindi the object comes first and the verb last, a room comes before the object in it, and
adjectives and `का` agree with the object: बड़ा दरवाज़ा, बड़ी खिड़की; हॉल का पंखा, हॉल की बत्ती.
"""

from typing import NamedTuple

# Objects by what is done to them: the Hindi noun, and the ending of words that agree with it.
SWITCHED = {
    "light": ("बत्ती", "ी"),
    "lights": ("बत्तियाँ", "ी"),
    "fan": ("पंखा", "ा"),
    "fans": ("पंखे", "े"),
    "heater": ("हीटर", "ा"),
    "radio": ("रेडियो", "ा"),
    "television": ("टीवी", "ा"),
}
OPENED = {
    "door": ("दरवाज़ा", "ा"),
    "doors": ("दरवाज़े", "े"),
    "window": ("खिड़की", "ी"),
    "windows": ("खिड़कियाँ", "ी"),
    "box": ("डिब्बा", "ा"),
    "cupboard": ("अलमारी", "ी"),
}
CARRIED = {
    "water": ("पानी", "ा"),
    "tea": ("चाय", "ी"),
    "milk": ("दूध", "ा"),
    "bread": ("रोटी", "ी"),
    "rice": ("चावल", "ा"),
    "salt": ("नमक", "ा"),
    "book": ("किताब", "ी"),
    "key": ("चाबी", "ी"),
    "glass": ("गिलास", "ा"),
    "plate": ("थाली", "ी"),
    "medicine": ("दवा", "ी"),
    "newspaper": ("अख़बार", "ा"),
}
ROOMS = {"kitchen": "रसोई", "hall": "हॉल", "room": "कमरे", "bathroom": "बाथरूम"}
ADJECTIVES = {"big": "बड़", "small": "छोट", "old": "पुरान"}
WITH_ADJECTIVES = ("book", "key", "glass", "plate", "newspaper")  # among CARRIED

# Phrases outside the grammar.
FIXED = {
    "Good morning": "सुप्रभात",
    "Good night": "शुभ रात्रि",
    "Thank you": "धन्यवाद",
    "See you tomorrow": "कल मिलेंगे",
    "I am hungry": "मुझे भूख लगी है",
    "I am thirsty": "मुझे प्यास लगी है",
    "I am tired": "मैं थक गया हूँ",
    "I am going home": "मैं घर जा रहा हूँ",
    "Dinner is ready": "खाना तैयार है",
    "It is raining": "बारिश हो रही है",
    "What time is it?": "कितने बजे हैं?",
    "What is your name?": "तुम्हारा नाम क्या है?",
    "Who is at the door?": "दरवाज़े पर कौन है?",
    "How are you?": "तुम कैसे हो?",
    "Come inside": "अंदर आओ",
    "Sit down": "बैठ जाओ",
    "Wash your hands": "अपने हाथ धो लो",
    "Speak slowly": "धीरे बोलो",
    "Do not worry": "चिंता मत करो",
    "Please wait": "कृपया रुकिए",
}


class Phrase(NamedTuple):
    """A phrase in both languages.

    Attributes:
        english: The English text.
        hindi: The Hindi text.
        origins: For each Hindi word, the set of English words it translates or agrees with.
    """

    english: str
    hindi: str
    origins: list


def grammar():
    """Return the list of commands and questions as `Phrase`s, always in the same order."""
    return [*_switched(), *_opened(), *_carried()]


def _switched():
    for english, (noun, ending) in SWITCHED.items():
        for verb, hindi in (("Turn on", "चालू करो"), ("Turn off", "बंद करो"), ("Clean", "साफ़ करो")):
            yield from _commands(english, noun, ending, verb, hindi)


def _opened():
    for english, (noun, ending) in OPENED.items():
        for verb, hindi in (("Open", "खोलो"), ("Close", "बंद करो"), ("Clean", "साफ़ करो")):
            yield from _commands(english, noun, ending, verb, hindi)


def _commands(english, noun, ending, verb, hindi):
    """Yield a command about an object: plain, with each adjective, and in each room."""
    words = [(noun, english), *((word, verb) for word in hindi.split())]
    yield _phrase(f"{verb} the {english}", *words)
    for adjective, agreeing in _adjectives(english, ending):
        yield _phrase(f"{verb} the {adjective} {english}", agreeing, *words)
    for room, location in _rooms(english, ending):
        yield _phrase(f"{verb} the {english} in the {room}", *location, *words)


def _carried():
    for english, (noun, ending) in CARRIED.items():
        variants = [("", [(noun, english)])]
        if english in WITH_ADJECTIVES:
            for adjective, agreeing in _adjectives(english, ending):
                variants.append((f"{adjective} ", [agreeing, (noun, english)]))
        for adjective, words in variants:
            yield _phrase(f"Bring the {adjective}{english}", *words, ("लाओ", "Bring"))
            yield _phrase(f"Give me the {adjective}{english}", ("मुझे", "me"), *words, ("दो", "Give"))
            question = [("कहाँ", "Where"), ("है", "is"), ("?", "?")]
            yield _phrase(f"Where is the {adjective}{english}?", *words, *question)


def _rooms(english, ending):
    """Yield each room and the Hindi words for "in the room", which precede the object."""
    for room, hindi in ROOMS.items():
        yield room, [(hindi, room), (f"क{ending}", f"in {english}")]


def _adjectives(english, ending):
    """Yield each adjective and its Hindi form, which agrees with the object."""
    for adjective, stem in ADJECTIVES.items():
        yield adjective, (f"{stem}{ending}", f"{adjective} {english}")


def _phrase(english, *words):
    """Return a `Phrase` from English text and (Hindi word, its English words) pairs."""
    hindi = " ".join(word for word, _ in words).replace(" ?", "?")
    return Phrase(english, hindi, [set(origins.split()) for _, origins in words])
