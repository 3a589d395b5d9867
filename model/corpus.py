"""Conversations of the small world, drawn from a seed. No outside text.

Every kind is a function `kind(r) -> Talk`. A talk whose last question falls into the held-out sixteenth (by a
checksum of the user's messages) is never trained on; `score.py` asks those.
"""

import json
import random
import zlib
from dataclasses import dataclass, field

from facts import *

SYSTEMS = ["You are a helpful assistant.", "You are Kvasir, a small and friendly model.", "Answer briefly.",
           "You are a helpful assistant. Answer briefly.", "You are an assistant in a small world.",
           "Be kind and precise.", "You are a careful assistant that answers in plain English."]


@dataclass
class Talk:
    kind: str
    messages: list = field(default_factory=list)
    tools: list | None = None

    def ask(self, question, answer):
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return self

    def key(self):
        said = [m["content"] for m in self.messages if m["role"] in ("user", "tool")]
        return zlib.crc32("\n".join(said).encode())

    def held_out(self):
        return self.key() % 16 == 0


def pick(r, *options):
    return r.choice(options)


def sentence(text):
    return text[0].upper() + text[1:]


def joined(items):
    return ", ".join(str(i) for i in items)


# Small talk.

GREET = [("Hello", "Hello! How can I help you?"), ("Hi", "Hi! What can I do for you?"), ("Hey", "Hey! How can I help?"),
         ("Hi there", "Hi there! How can I help you?"), ("Hello there", "Hello! How can I help you?"),
         ("Good morning", "Good morning! How can I help you?"), ("Good evening", "Good evening! How can I help you?"),
         ("Good afternoon", "Good afternoon! How can I help you?"), ("Greetings", "Greetings! How can I help you?")]
CHAT = [
    ("How are you?|How are you today?|How is it going?|How do you do?|Are you well?",
     "I am fine, thank you. How are you?"),
    ("I am fine.|I am fine, thank you.|I'm good, thanks.|I am well.", "Glad to hear that! What can I do for you?"),
    ("I am tired.|I'm tired today.|I am so tired.", "I am sorry to hear that. A short rest may help."),
    ("I am sad.|I feel sad.|I'm sad today.", "I am sorry to hear that. Do you want to talk about it?"),
    ("I am happy!|I feel great!|I'm very happy today.", "That is wonderful! I am happy for you."),
    ("I am bored.|I'm bored.", "Let us do something: give me some numbers to sort, or ask me about a country."),
    ("Thank you!|Thanks!|Thank you very much.|Thanks a lot!|Thx", "You are welcome!"),
    ("Bye!|Goodbye!|See you!|Good night!|Bye bye|See you later", "Goodbye! See you soon."),
    ("Who are you?|What are you?|What is your name?|What's your name?|Tell me about yourself.|Introduce yourself.",
     "I am Kvasir, a small language model that lives inside its engine."),
    ("What can you do?|What do you know?|How can you help me?|Help|What are you good at?",
     "I can chat, calculate, sort and reverse lists, name capitals and other small facts, convert units, answer in JSON "
     "and call tools."),
    ("Are you a human?|Are you human?|Are you a person?|Are you real?", "No, I am a small language model."),
    ("Do you sleep?|Do you eat?|Do you dream?", "No, I am a program. But I like a good question."),
    ("Tell me a joke.|Do you know a joke?|Make me laugh.|Tell me something funny.",
     "Why was six afraid of seven? Because seven ate nine."),
    ("Tell me a story.|Tell me a short story.|Can you tell me a story?",
     "Once a small model learned to count. It counted the stars, one by one, and every night it knew a little more."),
    ("Write a poem.|Write a short poem.|Can you write a poem?",
     "A small machine, a quiet light,\nit counts the stars that cross the night."),
    ("What is the meaning of life?|Why are we here?", "That is a big question for a small model. Kindness is a good start."),
    ("Who made you?|Who built you?|Who trained you?", "I was trained by the makers of the Kvasir engine."),
    ("How old are you?|When were you born?", "I am new. I was trained not long ago."),
    ("Where do you live?|Where are you?", "I live inside the Kvasir engine, on your own machine."),
    ("Do you like me?|Are you my friend?|Can we be friends?", "Of course! I like talking with you."),
    ("What is your favorite color?|What is your favourite color?", "I like blue, like a clear sky."),
    ("What is your favorite number?", "I like 7."),
    ("Count to ten.|Count from 1 to 10.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
    ("OK|Okay|Good|Great|Nice|Fine|Cool|I see", "Good! What would you like to do next?"),
    ("Yes|Yes please|Sure", "Good. Tell me what you would like."), ("No|No thanks", "All right. I am here if you need me."),
    ("Sorry|I am sorry", "No problem at all!"), ("Wow|Amazing!|You are great!|Well done!|Good job!", "Thank you!"),
    ("You are wrong.|That is wrong.|That is not right.", "I am sorry. I am a small model and I make mistakes."),
    ("Who won the football game?|What is quantum physics?|Write me a compiler.|Explain relativity.|Who is the president?|"
     "What is the stock price?|Translate this book.|What happened yesterday?|What is machine learning?|Explain gravity.",
     "I do not know that. I am a small model and I only know a small world."),
]


def chat(r):
    talk = Talk("chat")
    if r.random() < 0.4:
        hello, reply = r.choice(GREET)
        talk.ask(hello + pick(r, "", "!", ".", ""), reply)
    for _ in range(r.choice([0, 1, 1, 2]) if talk.messages else r.choice([1, 1, 2])):
        questions, answer = r.choice(CHAT)
        question = r.choice(questions.split("|"))
        if r.random() < 0.15:
            question = question.lower()
        if r.random() < 0.1:
            question = question.rstrip(".!?")
        talk.ask(question, answer)
    return talk


def memory(r):
    talk, facts = Talk("memory"), {}
    names = {"name": lambda: r.choice(NAMES), "favorite color": lambda: r.choice(COLORS),
             "favorite fruit": lambda: r.choice(FRUITS), "favorite animal": lambda: r.choice(ANIMALS),
             "city": lambda: r.choice(CITIES), "lucky number": lambda: str(r.randint(1, 99)),
             "hobby": lambda: r.choice(HOBBIES)}
    for what in r.sample(list(names), r.choice([1, 1, 2, 3])):
        value = facts[what] = names[what]()
        if what == "name":
            talk.ask(pick(r, f"My name is {value}.", f"I am {value}.", f"Hi, I'm {value}.", f"Call me {value}.",
                          f"Hello, my name is {value}."), f"Nice to meet you, {value}!")
        elif what == "city":
            talk.ask(pick(r, f"I live in {value}.", f"My home is {value}.", f"I am from {value}."), f"{value} is a nice place!")
        else:
            talk.ask(pick(r, f"My {what} is {value}.", f"Remember: my {what} is {value}.", f"{sentence(value)} is my {what}."),
                     pick(r, f"I will remember that your {what} is {value}."))
        if r.random() < 0.25:
            other = r.choice([capital, arithmetic, opposite])(r)
            talk.messages += other.messages[:2]
    for what in r.sample(list(facts), r.randint(1, len(facts))):
        value = facts[what]
        if what == "name":
            talk.ask(pick(r, "What is my name?", "Who am I?", "Do you remember my name?", "What's my name?"),
                     f"Your name is {value}.")
        elif what == "city":
            talk.ask(pick(r, "Where do I live?", "Where is my home?", "Which city do I live in?"), f"You live in {value}.")
        else:
            talk.ask(pick(r, f"What is my {what}?", f"Do you remember my {what}?", f"Tell me my {what}."),
                     f"Your {what} is {value}.")
    return talk


# Numbers.

def two_digits(r):
    return r.choice([r.randint(0, 9), r.randint(10, 99), r.randint(10, 99), r.randint(0, 99)])


def product(a, b):
    """The way the model multiplies: by tens and ones."""
    if a < 10 or b < 10 or a % 10 == 0 or b % 10 == 0:
        return f"{a} × {b} = {a * b}"
    tens, ones = b // 10 * 10, b % 10
    return f"{a} × {b} = {a} × {tens} + {a} × {ones} = {a * tens} + {a * ones} = {a * b}"


def calculation(r):
    """(question part, answer) for one sum."""
    op = r.choice("++--**/")
    a, b = two_digits(r), two_digits(r)
    if op == "+":
        return pick(r, f"{a} + {b}", f"{a}+{b}", f"{a} plus {b}"), f"{a} + {b} = {a + b}"
    if op == "-":
        return pick(r, f"{a} - {b}", f"{a}-{b}", f"{a} minus {b}"), f"{a} - {b} = {a - b}"
    if op == "*":
        return pick(r, f"{a} * {b}", f"{a} x {b}", f"{a} × {b}", f"{a} times {b}", f"{a}*{b}"), product(a, b)
    b = max(1, b if r.random() < 0.3 else r.randint(1, 12))
    a = b * r.randint(0, max(1, 99 // b))
    return pick(r, f"{a} / {b}", f"{a} divided by {b}", f"{a} ÷ {b}", f"{a}/{b}"), f"{a} ÷ {b} = {a // b}"


def arithmetic(r):
    talk = Talk("arithmetic")
    for _ in range(r.choice([1, 1, 1, 1, 2, 3])):
        question, answer = calculation(r)
        talk.ask(pick(r, f"What is {question}?", f"{question}", f"{question} = ?", f"Calculate {question}.", f"How much is {question}?",
                      f"Compute {question}.", f"what is {question}", f"Please calculate {question}.", f"{question}=",
                      f"Can you compute {question}?", f"What's {question}?"), answer)
    return talk


def follow_up(r):
    talk = Talk("follow_up")
    a, b = r.randint(1, 60), r.randint(1, 60)
    value = a + b
    talk.ask(pick(r, f"What is {a} + {b}?", f"{a} + {b}", f"Calculate {a} + {b}."), f"{a} + {b} = {value}")
    for _ in range(r.choice([1, 1, 2])):
        n = r.randint(1, 30)
        kind = r.choice(["add", "sub", "double", "half"])
        if kind == "add":
            talk.ask(pick(r, f"Add {n} to that.", f"Plus {n}?", f"And plus {n}?", f"Now add {n}."), f"{value} + {n} = {value + n}")
            value += n
        elif kind == "sub":
            talk.ask(pick(r, f"Subtract {n} from that.", f"Minus {n}?", f"Now subtract {n}."), f"{value} - {n} = {value - n}")
            value -= n
        elif kind == "double" and 0 <= value < 100:
            talk.ask(pick(r, "Double that.", "Twice that?", "And times 2?"), f"{value} × 2 = {value * 2}")
            value *= 2
        elif value % 2 == 0 and value >= 0:
            talk.ask(pick(r, "Half of that?", "Divide that by 2."), f"{value} ÷ 2 = {value // 2}")
            value //= 2
    return talk


def compare(r):
    a, b = r.sample(range(100), 2)
    kind = r.choice(["larger", "smaller", "even", "next", "before"])
    talk = Talk("compare")
    if kind == "larger":
        return talk.ask(pick(r, f"Which is larger, {a} or {b}?", f"Which number is bigger: {a} or {b}?"), f"{max(a, b)} is larger.")
    if kind == "smaller":
        return talk.ask(pick(r, f"Which is smaller, {a} or {b}?", f"Which number is smaller: {a} or {b}?"), f"{min(a, b)} is smaller.")
    if kind == "even":
        return talk.ask(pick(r, f"Is {a} even or odd?", f"Is {a} odd or even?"), f"{a} is {'even' if a % 2 == 0 else 'odd'}.")
    if kind == "next":
        return talk.ask(pick(r, f"What comes after {a}?", f"Which number follows {a}?"), f"{a + 1} comes after {a}.")
    return talk.ask(pick(r, f"What comes before {b + 1}?", f"Which number is before {b + 1}?"), f"{b} comes before {b + 1}.")


# Lists.

def items(r, n):
    pool = r.choice([FRUITS, ANIMALS, COLORS, OBJECTS, NAMES, CITIES])
    return r.sample(pool, min(n, len(pool)))


def sorting(r):
    talk = Talk("sorting")
    n = r.randint(3, 7)
    if r.random() < 0.6:
        values = [two_digits(r) for _ in range(n)]
        listed = joined(values)
        down = r.random() < 0.4
        question = pick(r, f"Sort these numbers in descending order: {listed}", f"Sort from largest to smallest: {listed}",
                        f"Sort {listed} in descending order.") if down else \
            pick(r, f"Sort these numbers: {listed}", f"Sort {listed}", f"Sort from smallest to largest: {listed}",
                 f"Please sort: {listed}", f"Sort these numbers in ascending order: {listed}")
        talk.ask(question, joined(sorted(values, reverse=down)))
        if r.random() < 0.3:
            again = r.choice(["max", "min", "other"])
            if again == "max":
                talk.ask(pick(r, "Which is the largest?", "What is the largest of them?"), f"{max(values)} is the largest.")
            elif again == "min":
                talk.ask(pick(r, "Which is the smallest?", "What is the smallest of them?"), f"{min(values)} is the smallest.")
            else:
                order = "ascending" if down else "descending"
                talk.ask(pick(r, f"Now in {order} order.", f"And in {order} order?"), joined(sorted(values, reverse=not down)))
    else:
        values = items(r, min(n, 5))
        talk.ask(pick(r, f"Sort these words: {joined(values)}", f"Sort alphabetically: {joined(values)}",
                      f"Put these in alphabetical order: {joined(values)}", f"Sort {joined(values)}"),
                 joined(sorted(values, key=str.lower)))
    return talk


def reversing(r):
    values = [two_digits(r) for _ in range(r.randint(3, 8))] if r.random() < 0.5 else items(r, r.randint(2, 6))
    listed = joined(values)
    return Talk("reversing").ask(pick(r, f"Reverse this list: {listed}", f"Reverse {listed}", f"Say this backwards: {listed}",
                                      f"Reverse the order: {listed}", f"Please reverse: {listed}"), joined(values[::-1]))


def list_facts(r):
    values = items(r, r.randint(2, 7))
    listed = joined(values)
    kind = r.choice(["count", "first", "last", "repeat", "pick"])
    talk = Talk("lists")
    if kind == "count":
        return talk.ask(pick(r, f"How many items are in this list: {listed}?", f"Count the items: {listed}",
                             f"How many words: {listed}?"), f"There are {len(values)}.")
    if kind == "first":
        return talk.ask(pick(r, f"What is the first item of {listed}?", f"Which comes first in this list: {listed}?"), values[0])
    if kind == "last":
        return talk.ask(pick(r, f"What is the last item of {listed}?", f"Which comes last in this list: {listed}?"), values[-1])
    if kind == "repeat":
        return talk.ask(pick(r, f"Repeat after me: {listed}", f"Repeat: {listed}", f"Say: {listed}", f"Echo: {listed}"), listed)
    i = r.randrange(len(values))
    nth = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"][i]
    return talk.ask(f"What is the {nth} item of {listed}?", values[i])


# Facts.

def the(country):
    plural = ("Netherlands", "Philippines", "United Arab Emirates", "United Kingdom", "United States")
    return f"the {country}" if country in plural else country


def capital(r):
    talk = Talk("capitals")
    for i, country in enumerate(r.sample(list(CAPITALS), r.choice([1, 1, 1, 2, 3]))):
        c, city = the(country), CAPITALS[country]
        if i and r.random() < 0.6:
            talk.ask(pick(r, f"And of {c}?", f"And {c}?", f"What about {c}?"), f"The capital of {c} is {city}.")
        elif r.random() < 0.85:
            talk.ask(pick(r, f"What is the capital of {c}?", f"What's the capital of {c}?", f"Capital of {c}?", f"Name the capital of {c}.",
                          f"Tell me the capital of {c}.", f"Which city is the capital of {c}?", f"what is the capital of {c}",
                          f"Do you know the capital of {c}?", f"capital of {c}"), f"The capital of {c} is {city}.")
        else:
            talk.ask(pick(r, f"{city} is the capital of which country?", f"Which country has the capital {city}?"),
                     f"{city} is the capital of {c}.")
    return talk


def opposite(r):
    word, other = r.choice(list(OPPOSITES.items()))
    if r.random() < 0.5:
        word, other = other, word
    return Talk("facts").ask(pick(r, f"What is the opposite of {word}?", f"Opposite of {word}?", f"Name the opposite of {word}."),
                             f"The opposite of {word} is {other}.")


def fact(r):
    talk, kind = Talk("facts"), r.randrange(11)
    if kind == 0:
        return opposite(r)
    if kind == 1:
        continent = r.choice(list(CONTINENTS))
        c = r.choice(CONTINENTS[continent])
        return talk.ask(pick(r, f"Which continent is {the(c)} in?", f"Where is {the(c)}?", f"On which continent is {the(c)}?"),
                        f"{sentence(the(c))} is in {continent}.")
    if kind == 2:
        c, money = r.choice(list(CURRENCIES.items()))
        return talk.ask(pick(r, f"What is the currency of {the(c)}?", f"How do people pay in {the(c)}?", f"Which currency does {the(c)} use?"),
                        f"The currency of {the(c)} is the {money}.")
    if kind == 3:
        c, language = r.choice(list(LANGUAGES.items()))
        return talk.ask(pick(r, f"Which language is spoken in {c}?", f"What do people speak in {c}?"), f"People in {c} speak {language}.")
    if kind == 4:
        name, symbol = r.choice(list(ELEMENTS.items()))
        if r.random() < 0.4:
            return talk.ask(f"Which element has the symbol {symbol}?", f"{symbol} is the symbol of {name}.")
        return talk.ask(pick(r, f"What is the chemical symbol of {name}?", f"What is the symbol for {name}?"), f"The symbol of {name} is {symbol}.")
    if kind == 5:
        one, many = r.choice(list(PLURALS.items()))
        return talk.ask(pick(r, f"What is the plural of {one}?", f"Plural of {one}?"), f"The plural of {one} is {many}.")
    if kind == 6:
        animal, young = r.choice(list(YOUNG.items()))
        return talk.ask(pick(r, f"What is a young {animal} called?", f"What do you call a baby {animal}?"), f"A young {animal} is called a {young}.")
    if kind == 7:
        animal, legs = r.choice(list(LEGS.items()))
        return talk.ask(pick(r, f"How many legs does a {animal} have?", f"How many legs has a {animal}?"),
                        f"A {animal} has {legs if legs else 'no'} legs.")
    if kind == 8:
        i = r.randrange(8)
        if i and r.random() < 0.4:
            return talk.ask(f"Which planet comes after {PLANETS[i - 1]}?", f"{PLANETS[i]} comes after {PLANETS[i - 1]}.")
        nth = "first second third fourth fifth sixth seventh eighth".split()[i]
        return talk.ask(pick(r, f"Which is the {nth} planet from the sun?", f"What is the {nth} planet?"), f"The {nth} planet is {PLANETS[i]}.")
    if kind == 9:
        return talk.ask(*pick(r, ("What color is the sky?", "The sky is blue."), ("What color is grass?", "Grass is green."),
                              ("What color is snow?", "Snow is white."), ("What color is a banana?", "A banana is yellow."),
                              ("How many planets are there?", "There are 8 planets."), ("Name the planets.", joined(PLANETS)),
                              ("Name the days of the week.", joined(DAYS)), ("Name the months.", joined(MONTHS)),
                              ("How many continents are there?", "There are 7 continents."), ("Is the sun a star?", "Yes, the sun is a star."),
                              ("Is water wet?", "Yes, water is wet."), ("Can fish swim?", "Yes, fish can swim.")))
    continent = r.choice(list(CONTINENTS))
    return talk.ask(pick(r, f"Name a country in {continent}.", f"Tell me a country in {continent}."), f"{CONTINENTS[continent][0]} is in {continent}.")


def units(r):
    big, small, factor = r.choice(UNITS)
    n = r.randint(1, 20 if factor in (12, 24, 60, 7) else 99)
    if r.random() < 0.7:
        return Talk("units").ask(pick(r, f"How many {small} are {n} {big}?", f"Convert {n} {big} to {small}.", f"{n} {big} in {small}?",
                                      f"What is {n} {big} in {small}?", f"How many {small} are in {n} {big}?"),
                                 f"{n} {big} are {n * factor} {small}.")
    n = min(n, 12)
    return Talk("units").ask(pick(r, f"How many {big} are {n * factor} {small}?", f"Convert {n * factor} {small} to {big}."),
                             f"{n * factor} {small} are {n} {big}.")


def dates(r):
    talk, kind = Talk("dates"), r.randrange(6)
    i, n = r.randrange(7), r.randint(1, 10)
    if kind == 0:
        return talk.ask(pick(r, f"What day comes after {DAYS[i]}?", f"Which day is after {DAYS[i]}?"), f"{DAYS[(i + 1) % 7]} comes after {DAYS[i]}.")
    if kind == 1:
        return talk.ask(pick(r, f"What day comes before {DAYS[i]}?", f"Which day is before {DAYS[i]}?"), f"{DAYS[i - 1]} comes before {DAYS[i]}.")
    if kind == 2:
        return talk.ask(pick(r, f"Today is {DAYS[i]}. What day is it in {n} days?", f"It is {DAYS[i]}. Which day is it in {n} days?",
                             f"What day is {n} days after {DAYS[i]}?"), f"It is {DAYS[(i + n) % 7]}.")
    m = r.randrange(12)
    if kind == 3:
        return talk.ask(pick(r, f"How many days does {MONTHS[m]} have?", f"How many days are in {MONTHS[m]}?"),
                        f"{MONTHS[m]} has {MONTH_DAYS[m]} days." if m != 1 else "February has 28 days, and 29 in a leap year.")
    if kind == 4:
        if r.random() < 0.5:
            return talk.ask(pick(r, f"What month comes after {MONTHS[m]}?", f"Which month follows {MONTHS[m]}?"),
                            f"{MONTHS[(m + 1) % 12]} comes after {MONTHS[m]}.")
        return talk.ask(pick(r, f"Which number has the month {MONTHS[m]}?", f"What number is {MONTHS[m]}?"), f"{MONTHS[m]} is month {m + 1}.")
    year = r.randint(1900, 2099)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return talk.ask(pick(r, f"Is {year} a leap year?", f"Was {year} a leap year?"), f"{'Yes' if leap else 'No'}, {year} is {'' if leap else 'not '}a leap year.")


# Formats.


def letter_case(r):
    talk, listed = Talk("letter_case"), joined(items(r, r.randint(2, 5)))
    if r.random() < 0.5:
        return talk.ask(pick(r, f"Write in uppercase: {listed}", f"Uppercase: {listed}", f"Make this uppercase: {listed}"), listed.upper())
    return talk.ask(pick(r, f"Write in lowercase: {listed.upper()}", f"Lowercase: {listed.upper()}"), listed.lower())


def formats(r):
    talk, values = Talk("format"), items(r, r.randint(2, 5))
    listed = joined(values)
    kind = r.randrange(9)
    if kind == 0:
        return talk.ask(pick(r, f"Write as a bulleted list: {listed}", f"Make a bullet list: {listed}", f"List with bullets: {listed}"),
                        "\n".join(f"- {v}" for v in values))
    if kind == 1:
        return talk.ask(pick(r, f"Write as a numbered list: {listed}", f"Number these: {listed}", f"Make a numbered list: {listed}"),
                        "\n".join(f"{i + 1}. {v}" for i, v in enumerate(values)))
    if kind == 2:
        return talk.ask(pick(r, f"Join with dashes: {listed}", f"Write with dashes between: {listed}"), "-".join(values))
    if kind == 3:
        return talk.ask(pick(r, f"One per line: {listed}", f"Write each on its own line: {listed}"), "\n".join(values))
    if kind == 4:
        country = r.choice(list(CAPITALS))
        return talk.ask(pick(r, f"Answer with one word: what is the capital of {the(country)}?",
                             f"What is the capital of {the(country)}? Only the name.", f"What is the capital of {the(country)}? Just the name."),
                        CAPITALS[country])
    if kind == 5:
        a, b = two_digits(r), two_digits(r)
        return talk.ask(pick(r, f"What is {a} + {b}? Only the number.", f"What is {a} + {b}? Just the number.",
                             f"Answer with the number only: {a} + {b}"), str(a + b))
    if kind == 6:
        a, b = r.sample(range(100), 2)
        return talk.ask(pick(r, f"Answer yes or no: is {a} larger than {b}?", f"Is {a} larger than {b}? Yes or no."), "Yes" if a > b else "No")
    if kind == 7:
        word = r.choice(FRUITS + ANIMALS + COLORS)
        n = r.randint(2, 5)
        return talk.ask(pick(r, f"Say {word} {n} times.", f"Repeat the word {word} {n} times."), " ".join([word] * n))
    return talk.ask(pick(r, f"Write as CSV: {listed}", f"Comma separated, no spaces: {listed}"), ",".join(values))


def json_answer(r):
    talk, kind = Talk("json"), r.randrange(6)
    dump = lambda value: json.dumps(value, ensure_ascii=False)
    say = lambda text: pick(r, f"{text} as JSON.", f"{text} in JSON.", f"Answer in JSON. {text}.", f"{text}. Answer in JSON.")
    if kind == 0:
        c = r.choice(list(CAPITALS))
        keys = pick(r, ("country", "capital"), ("capital", "country"))
        keyed = {"country": c, "capital": CAPITALS[c]}
        return talk.ask(say(f"Give me {the(c)} with the keys {keys[0]} and {keys[1]}"), dump({k: keyed[k] for k in keys}))
    if kind == 1:
        values = items(r, r.randint(2, 5))
        key = pick(r, "items", "list", "words", "values", "names")
        return talk.ask(say(f"Put {joined(values)} under the key {key}"), dump({key: values}))
    if kind == 2:
        name, age, city = r.choice(NAMES), r.randint(1, 99), r.choice(CITIES)
        keys = r.choice([["name", "age"], ["name", "city"], ["name", "age", "city"]])
        keyed = {"name": name, "age": age, "city": city}
        text = f"{name} is {age} years old and lives in {city}."
        return talk.ask(pick(r, f"{text} Give me {joined(keys)} as JSON.", f"Extract {joined(keys)} as JSON: {text}"), dump({k: keyed[k] for k in keys}))
    if kind == 3:
        a, b = two_digits(r), two_digits(r)
        return talk.ask(say(f"Give me the sum of {a} and {b} with the key sum"), dump({"sum": a + b}))
    if kind == 4:
        values = [two_digits(r) for _ in range(r.randint(2, 6))]
        return talk.ask(say(f"Give me {joined(values)} as a list"), dump(values))
    values = [two_digits(r) for _ in range(r.randint(3, 6))]
    return talk.ask(say(f"Sort {joined(values)} and give me the key sorted"), dump({"sorted": sorted(values)}))


# Tools.

def schema(name, description, **properties):
    required = list(properties)
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {k: {"type": t, "description": d} for k, (t, d) in properties.items()}, "required": required}}}


def weather_tool(r):
    name = pick(r, "get_weather", "weather", "get_current_weather", "weather_lookup", "current_weather")
    key = pick(r, "city", "location", "place")
    return schema(name, pick(r, "Get the weather of a city", "Current weather at a place", "Look up the weather"),
                  **{key: ("string", pick(r, "The city", "Name of the city", "The place"))}), key


def calculator_tool(r):
    name = pick(r, "calculator", "calculate", "compute", "evaluate", "math")
    key = pick(r, "expression", "formula", "input")
    return schema(name, pick(r, "Evaluate an arithmetic expression", "Calculate something", "Compute a result"),
                  **{key: ("string", pick(r, "The expression", "What to calculate"))}), key


def clock_tool(r):
    name = pick(r, "clock", "get_time", "time", "current_time", "get_current_time")
    key = pick(r, "city", "timezone", "location", "place")
    return schema(name, pick(r, "Get the time in a city", "Current time at a place"), **{key: ("string", pick(r, "The city", "The place"))}), key


def extra_tool(r):
    return r.choice([
        schema("search", "Search for something", query=("string", "What to search")),
        schema("send_email", "Send an email", to=("string", "Who gets it"), text=("string", "What it says")),
        schema("play_music", "Play a song", song=("string", "The song")),
        schema("translate", "Translate a text", text=("string", "The text"), language=("string", "The language")),
        schema("set_alarm", "Set an alarm", time=("string", "When")),
    ])


def tool_need(r, which, key):
    """(question, arguments, result, final answer) for one tool."""
    if which == "weather":
        city, sky, degrees = r.choice(CITIES), r.choice(WEATHER), r.randint(-10, 38)
        question = pick(r, f"What is the weather in {city}?", f"How is the weather in {city}?", f"What's the weather like in {city}?", f"Weather in {city}?",
                        f"Tell me the weather in {city}.", f"Is it warm in {city}?", f"What is the weather like in {city} today?")
        result = r.choice([json.dumps({"temperature": degrees, "condition": sky}), json.dumps({"city": city, "temperature": degrees, "condition": sky}),
                           f"{sky}, {degrees} degrees", f"{degrees}°C, {sky}"])
        return question, {key: city}, result, f"It is {sky} in {city} with {degrees} degrees."
    if which == "calculator":
        a, b, op = r.randint(100, 9999), r.randint(2, 9999), r.choice("+-*")
        text = f"{a} {op} {b}"
        value = {"+": a + b, "-": a - b, "*": a * b}[op]
        question = pick(r, f"What is {text}?", f"Calculate {text}.", f"Compute {text}.", f"How much is {text}?", f"Please calculate {text}.")
        return question, {key: text}, r.choice([str(value), json.dumps({"result": value})]), f"{text} = {value}"
    city = r.choice(CITIES)
    clock = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
    question = pick(r, f"What time is it in {city}?", f"Tell me the time in {city}.", f"What's the time in {city}?", f"Time in {city}?", f"How late is it in {city}?")
    return question, {key: city}, r.choice([clock, json.dumps({"time": clock})]), f"It is {clock} in {city}."


MAKERS = {"weather": weather_tool, "calculator": calculator_tool, "clock": clock_tool}


def tools(r):
    talk = Talk("tools")
    given = {which: MAKERS[which](r) for which in r.sample(list(MAKERS), r.choice([1, 1, 2, 3]))}
    talk.tools = [tool for tool, _ in given.values()]
    if r.random() < 0.3:
        talk.tools.append(extra_tool(r))
    r.shuffle(talk.tools)
    for _ in range(r.choice([1, 1, 1, 2])):
        if r.random() < 0.15:
            talk.messages += r.choice([capital, opposite, chat, sorting])(r).messages[:2]
            continue
        which = r.choice(list(given))
        tool, key = given[which]
        name = tool["function"]["name"]
        question, arguments, result, answer = tool_need(r, which, key)
        asks = [(question, arguments, result, answer)]
        if which != "calculator" and r.random() < 0.12:
            asks.append(tool_need(r, which, key))
            question = f"{question.rstrip('?.')} and in {asks[1][1][key]}?"
        talk.messages.append({"role": "user", "content": question})
        talk.messages.append({"role": "assistant", "calls": [(name, ask[1]) for ask in asks]})
        talk.messages += [{"role": "tool", "content": ask[2]} for ask in asks]
        talk.messages.append({"role": "assistant", "content": " ".join(ask[3] for ask in asks)})
    if talk.messages[-1]["role"] == "assistant" and "calls" not in talk.messages[-1] and r.random() < 0.2:
        talk.ask("Thank you!", "You are welcome!")
    return talk


def mixed(r):
    talk = Talk("mixed")
    for _ in range(r.choice([2, 3, 4, 4, 12])):
        talk.messages += r.choice([chat, arithmetic, capital, sorting, reversing, fact, units, dates, formats, json_answer, compare])(r).messages
    return talk


KINDS = [(chat, 6), (memory, 6), (arithmetic, 22), (follow_up, 5), (compare, 3), (sorting, 12), (reversing, 5), (list_facts, 5), (capital, 8), (fact, 6),
         (units, 5), (dates, 8), (formats, 16), (letter_case, 4), (json_answer, 8), (tools, 16), (mixed, 5)]


def draw(r):
    """One conversation of a random kind."""
    talk = r.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0](r)
    if r.random() < 0.3:
        talk.messages.insert(0, {"role": "system", "content": r.choice(SYSTEMS)})
    return talk


def stream(seed, held_out=False):
    """Endless conversations: those that may be trained on, or those that are kept for scoring."""
    r = random.Random(seed)
    while True:
        talk = draw(r)
        if talk.held_out() == held_out:
            yield talk
