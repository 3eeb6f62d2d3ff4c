"""Household phrases in English and Hindi: a small grammar of commands, and phrases as they are.

Hindi puts the object first and the verb last, the room before the thing in it, and lets adjectives
and `का` agree with the thing: बड़ा दरवाज़ा, बड़ी खिड़की; हॉल का पंखा, हॉल की बत्ती.
"""

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


def grammar():
    """Pairs of English and Hindi commands and questions, in a fixed order."""
    pairs = []
    for english, (noun, ending) in SWITCHED.items():
        for verb, hindi in (("on", "चालू"), ("off", "बंद")):
            pairs.append((f"Turn {verb} the {english}", f"{noun} {hindi} करो"))
            for room, place in ROOMS.items():
                pairs.append(
                    (
                        f"Turn {verb} the {english} in the {room}",
                        f"{place} क{ending} {noun} {hindi} करो",
                    )
                )
    for english, (noun, ending) in OPENED.items():
        for verb, hindi in (("Open", "खोलो"), ("Close", "बंद करो"), ("Clean", "साफ़ करो")):
            pairs.append((f"{verb} the {english}", f"{noun} {hindi}"))
            for adjective, stem in ADJECTIVES.items():
                pairs.append(
                    (f"{verb} the {adjective} {english}", f"{stem}{ending} {noun} {hindi}")
                )
    for english, (noun, _) in CARRIED.items():
        pairs.append((f"Bring the {english}", f"{noun} लाओ"))
        pairs.append((f"Give me the {english}", f"मुझे {noun} दो"))
        pairs.append((f"Where is the {english}?", f"{noun} कहाँ है?"))
    return pairs
