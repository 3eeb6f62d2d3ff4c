"""Household phrases in English and Hindi: a small grammar of commands, and phrases as they are.

Hindi puts the object first and the verb last, the room before the thing in it, and lets adjectives
and `का` agree with the thing: बड़ा दरवाज़ा, बड़ी खिड़की; हॉल का पंखा, हॉल की बत्ती.
"""

from typing import NamedTuple

# Things: the Hindi noun, and the ending of what agrees with it.
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
ADJECTIVES_FIT = ("book", "key", "glass", "plate", "newspaper")  # of what is carried

# Phrases that follow no rule of the grammar.
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
    """English, Hindi, and for each Hindi word the set of English words it says or agrees with."""

    english: str
    hindi: str
    origins: list


def grammar():
    """`Phrase`s: commands and questions, in a fixed order."""
    return [*_switched(), *_opened(), *_carried()]


def _switched():
    for english, (noun, ending) in SWITCHED.items():
        for verb, hindi in (("Turn on", "चालू करो"), ("Turn off", "बंद करो"), ("Clean", "साफ़ करो")):
            yield from _done_to(english, noun, ending, verb, hindi)


def _opened():
    for english, (noun, ending) in OPENED.items():
        for verb, hindi in (("Open", "खोलो"), ("Close", "बंद करो"), ("Clean", "साफ़ करो")):
            yield from _done_to(english, noun, ending, verb, hindi)


def _done_to(english, noun, ending, verb, hindi):
    """What is done to a thing, to one of a kind, to one in a room."""
    said = [(noun, english), *((word, verb) for word in hindi.split())]
    yield _phrase(f"{verb} the {english}", *said)
    for adjective, agreeing in _adjectives(english, ending):
        yield _phrase(f"{verb} the {adjective} {english}", agreeing, *said)
    for room, place in _rooms(english, ending):
        yield _phrase(f"{verb} the {english} in the {room}", *place, *said)


def _carried():
    for english, (noun, ending) in CARRIED.items():
        kinds = [("", [(noun, english)])]
        if english in ADJECTIVES_FIT:
            for adjective, agreeing in _adjectives(english, ending):
                kinds.append((f"{adjective} ", [agreeing, (noun, english)]))
        for kind, thing in kinds:
            yield _phrase(f"Bring the {kind}{english}", *thing, ("लाओ", "Bring"))
            yield _phrase(f"Give me the {kind}{english}", ("मुझे", "me"), *thing, ("दो", "Give"))
            asked = [("कहाँ", "Where"), ("है", "is"), ("?", "?")]
            yield _phrase(f"Where is the {kind}{english}?", *thing, *asked)


def _rooms(english, ending):
    """Each room, and how Hindi says that a thing is in it: before the thing, agreeing with it."""
    for room, hindi in ROOMS.items():
        yield room, [(hindi, room), (f"क{ending}", f"in {english}")]


def _adjectives(english, ending):
    for adjective, stem in ADJECTIVES.items():
        yield adjective, (f"{stem}{ending}", f"{adjective} {english}")


def _phrase(english, *said):
    """A `Phrase` of its English and its Hindi words, each with English ones in a string."""
    hindi = " ".join(word for word, _ in said).replace(" ?", "?")
    return Phrase(english, hindi, [set(words.split()) for _, words in said])
