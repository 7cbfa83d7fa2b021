"""Conversations made by templates, in the exact format of chat_template.jinja.

`dialogue` writes plain turns, `made_dialogues` invents greetings, arithmetic, word tasks, unit conversions, lists and tool calls
(Qwen3.5 XML style and Hermes JSON style), `country_dialogues` turns a public-domain fact book into questions and answers.
About a third of the answers come with a thought between <think> and </think>.
"""
import html
import json
import re
from dataclasses import dataclass

SYSTEMS = ["You are a helpful assistant.", "You are a helpful, honest assistant.", "Answer briefly.", "You are a careful assistant who gives short, correct answers.",
           "You are a programming assistant.", "You help users with their questions."]


@dataclass(frozen=True)
class Made:
    name: str = "conversations made by templates"
    licence: str = "own work"


# ---------------------------------------------------------------- format

def turn(role, content):
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def answer(content, thought=None):
    return turn("assistant", f"<think>\n{thought.strip()}\n</think>\n\n{content}" if thought else content)


def dialogue(turns, rng):
    """turns: (question, answer, thought or None); a thought is kept in the last turn only, as the template does"""
    out = [turn("system", rng.choice(SYSTEMS))] if rng.random() < 0.15 else []
    for i, (q, a, thought) in enumerate(turns):
        out += [turn("user", q), answer(a, thought if i == len(turns) - 1 else None)]
    return "".join(out)


XML_RULE = "To call a function, answer with:\n\n<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nVALUE\n</parameter>\n</function>\n</tool_call>"
JSON_RULE = "To call a function, answer with:\n\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}\n</tool_call>"


def system_with_tools(tools, style, text=None):
    listing = "".join("\n" + json.dumps(t, ensure_ascii=False) for t in tools)
    rule = JSON_RULE if style == "json" else XML_RULE
    return turn("system", f"# Tools\n\nYou may call these functions:\n\n<tools>{listing}\n</tools>\n\n{rule}" + (f"\n\n{text}" if text else ""))


def call(name, arguments, style):
    if style == "json":
        return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"
    params = "".join(f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{params}</function>\n</tool_call>"


def tool_results(results):
    return "<|im_start|>user" + "".join(f"\n<tool_response>\n{r}\n</tool_response>" for r in results) + "<|im_end|>\n"


# ---------------------------------------------------------------- words to fill in

NAMES = "Alice Ben Clara David Emma Farid Grace Hugo Ines Jonas Karen Liam Maria Nora Oscar Paula Quinn Rosa Samuel Tara Umar Vera Walter Yuki Zoe".split()
CITIES = ("Paris London Berlin Madrid Rome Vienna Lisbon Dublin Oslo Stockholm Helsinki Warsaw Prague Athens Cairo Nairobi Lagos Tokyo Osaka Seoul Beijing Shanghai Delhi Mumbai "
          "Bangkok Jakarta Sydney Melbourne Auckland Toronto Vancouver Montreal Chicago Boston Seattle Denver Austin Miami Lima Bogota Santiago Zurich Geneva Hamburg Munich Milan").split()
FRUIT = "apples pears plums oranges lemons peaches cherries grapes figs melons bananas berries".split()
THINGS = "books pencils coins marbles stamps cards stones tickets bottles boxes chairs cups plates shirts candles buttons eggs nails letters keys".split()
WORDS = ("river mountain garden window bridge candle market winter summer engine letter paper silver golden forest island harbor castle mirror pencil planet rocket shadow signal "
         "stream thunder valley village yellow orange purple kitchen library teacher student doctor farmer sailor painter musician machine computer keyboard network memory language sentence "
         "paragraph chapter history science number answer question morning evening friend family animal butterfly elephant dolphin").split()
ADJECTIVES = "small large old new quiet bright heavy light red green blue simple useful wooden clean broken warm cold".split()
TOPICS = ("the sea|tea|the moon|a garden|old maps|libraries|bread|rivers|bicycles|the wind|trains|rain|stars|mountains|bees|clocks|coffee|books|music|winter|bridges|markets|paper|trees|the desert").split("|")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
LANGS = ["Python", "C", "C++", "Rust", "Go", "JavaScript", "TypeScript", "Bash"]


def number(rng, top=100):
    return rng.randint(2, top)


# questions of prompts.py that must not be trained on
HELD_OUT = ("A baker makes 24 loaves", "Maria has 17 apples and gets 25 more", "Tell me about Portugal.")


def held_out(doc):
    return any(h in doc for h in HELD_OUT)


# ---------------------------------------------------------------- small tasks: each returns (question, answer, thought)

def greeting(rng):
    hello = rng.choice(["Hello", "Hi", "Hey", "Good morning", "Good evening", "Good afternoon", "Hello there", "Hi there"])
    tail = rng.choice(["", "!", ".", ", how are you?", ", can you help me?", "! How are you today?", f", I am {rng.choice(NAMES)}."])
    reply = rng.choice(["Hello! How can I help you today?", "Hello! What can I do for you?", "Hi! What would you like to know?", "Hello, nice to meet you. How can I help?"])
    if "how are you" in tail.lower():
        reply = rng.choice(["Hello! I am doing well, thank you. How can I help you?", "Hi! I am fine, thanks for asking. What can I do for you?"])
    elif "help" in tail:
        reply = rng.choice(["Of course. What do you need help with?", "Yes, gladly. What is your question?"])
    elif "I am" in tail:
        reply = f"Hello {tail[6:-1].split()[-1]}! How can I help you today?"
    return hello + tail, reply, "The user greets me. I will greet back and offer help."


def about_me(rng):
    q, a = rng.choice([("Who are you?", "I am a small language model made to test and show a local inference engine."),
                       ("What are you?", "I am a small language model. I can write short texts and code, but I make many mistakes."),
                       ("What can you do?", "I can answer short questions, write small functions, continue a text and call tools that you give me."),
                       ("Are you a human?", "No, I am a small language model running on a computer."),
                       ("Thank you!", "You are welcome!"), ("Thanks.", "You are welcome. Is there anything else?"), ("Goodbye!", "Goodbye! Have a nice day."),
                       ("What is your name?", "I have no name of my own. I am a small demo model."), ("Can you make mistakes?", "Yes. I am very small, so please check what I say.")])
    return q, a, None


def arithmetic(rng):
    a, b = number(rng), number(rng)
    kind = rng.randrange(5)
    if kind == 0:
        q, r, t = f"{a} + {b}", a + b, f"I add {a} and {b}. {a} + {b // 10 * 10} = {a + b // 10 * 10}, and {a + b // 10 * 10} + {b % 10} = {a + b}."
    elif kind == 1:
        a, b = max(a, b), min(a, b)
        q, r, t = f"{a} - {b}", a - b, f"I subtract {b} from {a}. {a} - {b // 10 * 10} = {a - b // 10 * 10}, and {a - b // 10 * 10} - {b % 10} = {a - b}."
    elif kind == 2:
        a, b = number(rng, 20), number(rng, 12)
        q, r, t = f"{a} * {b}", a * b, f"I multiply {a} by {b}. {a} * {b} = {a * b}."
    elif kind == 3:
        b, r = number(rng, 12), number(rng, 20)
        a = b * r
        q, t = f"{a} / {b}", f"I divide {a} by {b}. {b} * {r} = {a}, so the result is {r}."
    else:
        p = rng.choice([5, 10, 20, 25, 50])
        a = 20 * number(rng, 40)
        r = a * p // 100
        return rng.choice([f"What is {p}% of {a}?", f"Calculate {p} percent of {a}."]), f"{p}% of {a} is {r}.", f"{p}% means {p} of 100. {a} * {p} / 100 = {r}."
    return rng.choice([f"What is {q}?", f"Calculate {q}.", f"How much is {q}?", f"{q} = ?"]), rng.choice([f"{q} = {r}", f"{q} = {r}.", f"The result is {r}.", f"{q} equals {r}."]), t


def word_problem(rng):
    n, t = rng.choice(NAMES), rng.choice(FRUIT + THINGS)
    a, b, c = number(rng, 40) + 5, number(rng, 20), number(rng, 6)
    kind = rng.randrange(4)
    if kind == 0:
        return (f"{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?", f"{n} has {a} + {b} = {a + b} {t} now.",
                f"{n} starts with {a} {t}. Then {b} more come. {a} + {b} = {a + b}.")
    if kind == 1:
        b = min(b, a - 1)
        return (f"There are {a} {t} in a box. {n} takes {b} of them. How many are left?", f"There are {a} - {b} = {a - b} {t} left.",
                f"At first there are {a} {t}. {n} takes {b}. {a} - {b} = {a - b}.")
    if kind == 2:
        return (f"{n} buys {c} bags with {b} {t} each. How many {t} is that?", f"{c} bags with {b} {t} each are {c} * {b} = {c * b} {t}.",
                f"Each bag has {b} {t} and there are {c} bags. {c} * {b} = {c * b}.")
    return (f"{n} shares {b * c} {t} equally among {c} friends. How many does each friend get?", f"Each friend gets {b * c} / {c} = {b} {t}.",
            f"{b * c} {t} are shared by {c} friends. {b * c} / {c} = {b}.")


WORKERS = "baker potter carpenter gardener painter farmer weaver tailor printer cook florist toymaker".split()
MADE = "loaves cakes bowls chairs baskets pies bottles scarves posters candles boxes toys".split()
TIMES = {2: "twice", 3: "three times", 4: "four times"}


def steps_problem(rng):
    """a problem of several steps; the answer names what each line computes and ends with the result"""
    n, m = rng.sample(NAMES, 2)
    t, who, he = rng.choice(FRUIT + THINGS), *rng.choice([(w, h) for w in WORKERS for h in ("He", "She")])
    a, b, c = number(rng, 40) + 4, number(rng, 20), rng.randint(2, 4)
    kind = rng.randrange(9)
    if kind < 2:
        t, many = rng.choice(MADE), (1 + c) * a
        b = number(rng, many - 2)
        verb = rng.choice([("sells", "sold"), ("gives away", "given away"), ("keeps", "kept")])
        q = f"A {who} makes {a} {t} in the morning and {TIMES[c]} as many in the afternoon. {he} {verb[0]} {b}{rng.choice([' ' + t, ' of them', ''])}. How many {t} are left?"
        lines = [f"In the morning: {a} {t}.", f"In the afternoon: {c} * {a} = {c * a} {t}.", f"Together: {a} + {c * a} = {many} {t}.", f"{verb[1].capitalize()}: {b} {t}.", f"Left: {many} - {b} = {many - b} {t}."]
        r = many - b
    elif kind == 2:
        q = f"{n} has {a} {t}. {m} has {TIMES[c]} as many. How many {t} do they have together?"
        lines, r = [f"{n}: {a} {t}.", f"{m}: {c} * {a} = {c * a} {t}.", f"Together: {a} + {c * a} = {a + c * a} {t}."], a + c * a
    elif kind == 3:
        pay = c * b + number(rng, 20)
        q = f"{n} buys {c} {t} for {b} coins each and pays with {pay} coins. How many coins does {n} get back?"
        lines, r = [f"Price: {c} * {b} = {c * b} coins.", f"Paid: {pay} coins.", f"Back: {pay} - {c * b} = {pay - c * b} coins."], pay - c * b
    elif kind == 4:
        q = f"There are {c} shelves with {a} {t} each. {n} takes {b} {t}. How many {t} are left?"
        lines, r = [f"On the shelves: {c} * {a} = {c * a} {t}.", f"Taken: {b} {t}.", f"Left: {c * a} - {b} = {c * a - b} {t}."], c * a - b
    elif kind == 5:
        r = number(rng, 50)
        book = a + b + r
        q = f"{n} reads {a} pages on {DAYS[0]} and {b} pages on {DAYS[1]}. How many pages of a book of {book} pages are left?"
        lines = [f"On {DAYS[0]}: {a} pages.", f"On {DAYS[1]}: {b} pages.", f"Together: {a} + {b} = {a + b} pages.", f"Left: {book} - {a + b} = {r} pages."]
    elif kind == 6:
        v = 10 * number(rng, 12)
        q = f"A train travels {v} kilometers in an hour. How far does it travel in {c} hours, and how far is that both ways?"
        lines, r = [f"One way: {c} * {v} = {c * v} kilometers.", f"Both ways: 2 * {c * v} = {2 * c * v} kilometers."], f"{c * v} kilometers, and {2 * c * v} kilometers both ways"
    elif kind == 7:
        q = f"{n} saves {b} coins every week for {c} weeks and then spends {min(a, c * b - 1)}. How many coins are left?"
        a = min(a, c * b - 1)
        lines, r = [f"Saved: {c} * {b} = {c * b} coins.", f"Spent: {a} coins.", f"Left: {c * b} - {a} = {c * b - a} coins."], c * b - a
    else:
        q = f"A garden has {c} rows of {b} trees, and {a} more trees are planted. How many trees are there now?"
        lines, r = [f"In rows: {c} * {b} = {c * b} trees.", f"Planted: {a} trees.", f"Now: {c * b} + {a} = {c * b + a} trees."], c * b + a
    return q, "\n".join(lines) + f"\n\nThe answer is {r}.", "I go step by step. " + " ".join(lines)


def word_task(rng):
    w = rng.choice(WORDS)
    kind = rng.randrange(7)
    if kind == 0:
        return f"Spell the word \"{w}\".", "-".join(w.upper()), f"The letters of {w} are " + ", ".join(w) + "."
    if kind == 1:
        return f"How many letters are in the word \"{w}\"?", f"The word \"{w}\" has {len(w)} letters.", "I count: " + ", ".join(f"{x} is {i + 1}" for i, x in enumerate(w)) + "."
    if kind == 2:
        return f"Write \"{w}\" in capital letters.", w.upper(), None
    if kind == 3:
        return f"What is the first letter of \"{w}\"?", f"The first letter of \"{w}\" is \"{w[0]}\".", None
    if kind == 4:
        ws = rng.sample(WORDS, rng.randint(3, 6))
        return "Sort these words: " + ", ".join(ws) + ".", ", ".join(sorted(ws)), "I compare the first letters: " + ", ".join(f"{x[0]} for {x}" for x in ws) + ". In order: " + ", ".join(sorted(ws)) + "."
    if kind == 5:
        return f"Reverse the word \"{w}\".", w[::-1], "The letters from the end are " + ", ".join(w[::-1]) + "."
    xs = [number(rng, 60) for _ in range(rng.randint(3, 6))]
    return "Sort these numbers: " + ", ".join(map(str, xs)) + ".", ", ".join(map(str, sorted(xs))), f"The smallest is {min(xs)} and the largest is {max(xs)}."


UNITS = [("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("hours", "minutes", 60), ("minutes", "seconds", 60), ("kilograms", "grams", 1000), ("days", "hours", 24),
         ("weeks", "days", 7), ("liters", "milliliters", 1000), ("feet", "inches", 12), ("years", "months", 12), ("kilobytes", "bytes", 1000), ("dozens", "pieces", 12)]


def conversion(rng):
    big, small, f = rng.choice(UNITS)
    n = number(rng, 20)
    q = rng.choice([f"How many {small} are {n} {big}?", f"Convert {n} {big} to {small}.", f"{n} {big} in {small}?"])
    return q, f"{n} {big} are {n * f} {small}.", f"One of these {big} has {f} {small}. {n} * {f} = {n * f}."


MONTHS = "January February March April May June July August September October November December".split()


def calendar(rng):
    items, what = rng.choice([(DAYS, "day"), (MONTHS, "month")])
    i = rng.randrange(len(items))
    if rng.random() < 0.5:
        return f"Which {what} comes after {items[i]}?", f"{items[(i + 1) % len(items)]} comes after {items[i]}.", None
    return f"Which {what} comes before {items[i]}?", f"{items[i - 1]} comes before {items[i]}.", None


FACTS = [line.split("|") for line in """What is gravity?|Gravity is the force by which a body such as the Earth draws other bodies toward its centre. It keeps the planets in their orbits around the Sun.
What is water made of?|Water is made of hydrogen and oxygen. Its chemical formula is H2O.
What color is the sky?|On a clear day the sky is blue, because air scatters blue light more than red light.
What is the largest planet?|Jupiter is the largest planet in the solar system.
What is the smallest planet?|Mercury is the smallest planet in the solar system.
How many days are in a year?|A year has 365 days. A leap year has 366 days.
How many legs does a spider have?|A spider has eight legs.
What is the speed of light?|The speed of light in a vacuum is about 300,000 kilometers per second.
What is the boiling point of water?|Water boils at 100 degrees Celsius at sea level.
What is the freezing point of water?|Water freezes at 0 degrees Celsius.
Who wrote Hamlet?|Hamlet was written by William Shakespeare.
Who wrote Pride and Prejudice?|Pride and Prejudice was written by Jane Austen.
Who wrote Moby Dick?|Moby Dick was written by Herman Melville.
Who wrote Great Expectations?|Great Expectations was written by Charles Dickens.
What is photosynthesis?|Photosynthesis is the process by which plants use sunlight to make sugar from water and carbon dioxide. It also releases oxygen.
What is a prime number?|A prime number is a whole number greater than 1 that can be divided only by 1 and by itself.
What is a compiler?|A compiler is a program that translates source code into machine code or into another language.
What is an operating system?|An operating system is the software that manages the hardware of a computer and runs other programs.
What is a CPU?|The CPU is the central processing unit of a computer. It carries out the instructions of programs.
What is memory in a computer?|Memory is where a computer keeps the data and the programs that it is using.
What is an algorithm?|An algorithm is a list of steps that solves a problem or computes a result.
What is a function in programming?|A function is a named piece of code that takes arguments, does some work and may return a value.
What is a variable?|A variable is a name for a value that a program can read and change.
What is a list in Python?|A list is an ordered collection of values. You write it with square brackets, for example `[1, 2, 3]`.
What is a dictionary in Python?|A dictionary maps keys to values. You write it with braces, for example `{"a": 1}`.
What is recursion?|Recursion means that a function calls itself on a smaller part of the problem until it reaches a simple case.
What is a hash table?|A hash table stores values by keys. It computes a hash of the key to find the place of the value quickly.
What is a pointer in C?|A pointer is a variable that holds the address of another object in memory.
What is the difference between a list and a tuple?|A list can be changed after it is made. A tuple can not be changed.
What is binary search?|Binary search finds a value in a sorted list. It looks at the middle element and then goes on in the half that can contain the value.
What is a neural network?|A neural network is a model made of layers of simple units. It learns by adjusting the weights between them.
What is the Moon?|The Moon is the natural satellite of the Earth. It goes around the Earth in about 27 days.
What is the Sun?|The Sun is the star at the centre of our solar system. It gives the Earth light and heat.
How many continents are there?|There are seven continents: Africa, Antarctica, Asia, Australia, Europe, North America and South America.
What is the largest ocean?|The Pacific Ocean is the largest ocean on Earth.
What do bees make?|Bees make honey and wax.
What is ice?|Ice is frozen water. Water turns to ice at 0 degrees Celsius.
Why is the sea salty?|Rivers carry dissolved salts from the rocks of the land into the sea. Water evaporates from the sea, but the salts stay.
What is a novel?|A novel is a long story in prose, usually about imagined people and events.
What is a poem?|A poem is a text that uses rhythm, sound and images to express ideas or feelings.
How many hours are in a day?|A day has 24 hours.
What is the square root of 16?|The square root of 16 is 4.
What is pi?|Pi is the ratio of the circumference of a circle to its diameter. It is about 3.14159.
What is a triangle?|A triangle is a shape with three sides and three corners.
What is a verb?|A verb is a word that says what someone or something does or is.
What is a noun?|A noun is a word that names a person, a place, a thing or an idea.""".split("\n")]


def fact(rng):
    q, a = rng.choice(FACTS)
    if rng.random() < 0.3:
        q = q[:1].lower() + q[1:] if rng.random() < 0.5 else q.rstrip("?")
    what = re.sub(r"^(what|who|how|why) (is|are|was|many|wrote|do|does)? ?", "", q.rstrip("?"), flags=re.I)
    return q, a, f"The user asks: {q.rstrip('?')}? " + rng.choice([f"I should say something short about {what}.", "I will answer in one or two sentences.", "This is a short question, so a short answer is enough."])


def write_list(rng):
    n = rng.randint(3, 5)
    kind = rng.randrange(3)
    if kind == 0:
        xs = rng.sample(FRUIT, n)
        return f"Name {n} fruits.", "\n".join(f"{i + 1}. {x.capitalize()}" for i, x in enumerate(xs)), f"I need {n} fruits: " + ", ".join(xs) + "."
    if kind == 1:
        xs = rng.sample(CITIES, n)
        return f"List {n} cities.", "\n".join(f"- {x}" for x in xs), f"I need {n} cities: " + ", ".join(xs) + "."
    xs = rng.sample(LANGS, n)
    return f"Name {n} programming languages.", "\n".join(f"{i + 1}. {x}" for i, x in enumerate(xs)), f"I need {n} programming languages: " + ", ".join(xs) + "."


def write_sentence(rng):
    a, t, w, n = rng.choice(ADJECTIVES), rng.choice(TOPICS), rng.choice(WORDS), rng.choice(NAMES)
    kind = rng.randrange(3)
    if kind == 0:
        s = rng.choice(["The {w} was {a} and stood near the door.", "She found a {a} {w} in the garden.", "There was a {a} {w} on the table this morning.", "Nobody knew why the {w} was so {a}."])
        return f"Write a sentence with the word \"{w}\".", s.format(w=w, a=a), f"I need one sentence that contains the word {w}. I can call it {a}."
    if kind == 1:
        s = rng.choice(["{n} thought about {t} for a long time, and then wrote a short note.", "In the evening {n} told us a story about {t}.", "{n} had always liked {t}, even as a child."])
        return f"Write one sentence about {n} and {t}.", s.format(n=n, t=t), f"The sentence must name {n} and {t}."
    return f"Write a title for a text about {t}.", rng.choice(["A Short History of {t}", "On {t}", "Notes on {t}", "Why We Like {t}"]).format(t=t.title()), f"I need a title that names {t}."


SMALL_CODE = [
    ("adds two numbers", "add", "a, b", "return a + b"), ("multiplies two numbers", "multiply", "a, b", "return a * b"),
    ("returns the larger of two numbers", "larger", "a, b", "return a if a > b else b"), ("checks whether a number is even", "is_even", "n", "return n % 2 == 0"),
    ("checks whether a number is odd", "is_odd", "n", "return n % 2 == 1"), ("returns the length of a string", "length", "text", "return len(text)"),
    ("reverses a string", "reverse", "text", "return text[::-1]"), ("reverses the order of the words in a sentence", "reverse_words", "sentence", "return \" \".join(reversed(sentence.split()))"),
    ("counts the words in a text", "count_words", "text", "return len(text.split())"), ("counts the vowels in a string", "count_vowels", "text", "return sum(c in \"aeiou\" for c in text.lower())"),
    ("returns the sum of a list", "total", "values", "result = 0\n    for value in values:\n        result += value\n    return result"), ("returns the average of a list", "average", "values", "return sum(values) / len(values)"),
    ("returns the largest value of a list", "largest", "values", "best = values[0]\n    for value in values[1:]:\n        if value > best:\n            best = value\n    return best"),
    ("removes duplicates from a list", "unique", "values", "seen = set()\n    result = []\n    for value in values:\n        if value not in seen:\n            seen.add(value)\n            result.append(value)\n    return result"),
    ("computes the factorial of a number", "factorial", "n", "result = 1\n    for i in range(2, n + 1):\n        result *= i\n    return result"),
    ("returns the n-th Fibonacci number", "fibonacci", "n", "a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"),
    ("checks whether a string is a palindrome", "is_palindrome", "text", "text = text.lower()\n    return text == text[::-1]"),
    ("checks whether a number is prime", "is_prime", "n", "if n < 2:\n        return False\n    i = 2\n    while i * i <= n:\n        if n % i == 0:\n            return False\n        i += 1\n    return True"),
    ("computes the greatest common divisor", "gcd", "a, b", "while b:\n        a, b = b, a % b\n    return a"), ("reads a text file", "read_file", "path", "with open(path, encoding=\"utf-8\") as f:\n        return f.read()"),
    ("counts how often each word occurs", "word_counts", "text", "counts = {}\n    for word in text.split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts"),
    ("converts Celsius to Fahrenheit", "to_fahrenheit", "celsius", "return celsius * 9 / 5 + 32"), ("flattens a list of lists", "flatten", "lists", "return [x for items in lists for x in items]"),
    ("searches a sorted list by halves", "binary_search", "values, target", "low, high = 0, len(values) - 1\n    while low <= high:\n        middle = (low + high) // 2\n        if values[middle] == target:\n            return middle\n        if values[middle] < target:\n            low = middle + 1\n        else:\n            high = middle - 1\n    return -1"),
    ("sorts a list by repeated swapping", "bubble_sort", "values", "values = list(values)\n    for i in range(len(values)):\n        for j in range(len(values) - 1 - i):\n            if values[j] > values[j + 1]:\n                values[j], values[j + 1] = values[j + 1], values[j]\n    return values"),
    ("returns the square of a number", "square", "x", "return x * x"), ("keeps only the even numbers of a list", "even_numbers", "values", "return [x for x in values if x % 2 == 0]"),
    ("joins a list of words with commas", "join_words", "words", "return \", \".join(words)"), ("clamps a value to a range", "clamp", "value, low, high", "return max(low, min(high, value))"),
    ("swaps the keys and values of a dictionary", "invert", "mapping", "return {value: key for key, value in mapping.items()}"), ("returns the digits of a number as a list", "digits", "n", "return [int(d) for d in str(n)]")]


def small_code(rng):
    what, name, args, body = rng.choice(SMALL_CODE)
    if rng.random() < 0.25:
        name = rng.choice(["solve", "compute", "f", "helper", "my_function"])
    q = rng.choice([f"Write a Python function that {what}.", f"Write a function `{name}` in Python that {what}.", f"How do I write a Python function that {what}?",
                    f"Write a Python function `{name}`. It {what}.", f"Give me Python code that {what}."])
    doc = f"    \"\"\"{what.split()[0].rstrip('s').capitalize()} {' '.join(what.split()[1:])}.\"\"\"\n" if rng.random() < 0.5 else ""
    tail = rng.choice(["", "", f"\n\nThe function `{name}` {what}.", f"\n\nIt takes `{args}` and {what}."])
    return q, f"```python\ndef {name}({args}):\n{doc}    {body}\n```{tail}", f"The user wants a Python function that {what}. I will call it `{name}` with the arguments `{args}`."


TASKS = [(greeting, 5), (about_me, 2), (arithmetic, 8), (word_problem, 8), (steps_problem, 10), (word_task, 8), (conversion, 5), (calendar, 2), (fact, 10), (write_list, 4), (write_sentence, 6), (small_code, 12)]


# ---------------------------------------------------------------- tools

def prop(kind, about, **more):
    return {"type": kind, "description": about, **more}


def tool(name, about, required, **props):
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {"type": "object", "properties": props, "required": required}}}


TOOLS = {t["function"]["name"]: t for t in [
    tool("get_weather", "Get the current weather of a city.", ["city"], city=prop("string", "Name of the city"), unit=prop("string", "Unit of the temperature", enum=["celsius", "fahrenheit"])),
    tool("get_time", "Get the current time in a city.", ["city"], city=prop("string", "Name of the city")),
    tool("calculate", "Evaluate an arithmetic expression.", ["expression"], expression=prop("string", "The expression")),
    tool("search", "Search the web.", ["query"], query=prop("string", "What to search for"), limit=prop("integer", "Number of results")),
    tool("read_file", "Read a text file.", ["path"], path=prop("string", "Path of the file")),
    tool("write_file", "Write text to a file.", ["path", "content"], path=prop("string", "Path of the file"), content=prop("string", "Text to write")),
    tool("list_files", "List the files of a folder.", ["path"], path=prop("string", "Path of the folder")),
    tool("run_command", "Run a shell command.", ["command"], command=prop("string", "The command line")),
    tool("send_email", "Send an email.", ["to", "subject", "body"], to=prop("string", "Address"), subject=prop("string", "Subject line"), body=prop("string", "Text")),
    tool("create_event", "Add an event to the calendar.", ["title", "day", "hour"], title=prop("string", "Title"), day=prop("string", "Day of the week"), hour=prop("integer", "Hour, 0 to 23")),
    tool("set_timer", "Set a timer.", ["minutes"], minutes=prop("integer", "Length in minutes")),
    tool("translate", "Translate a text.", ["text", "language"], text=prop("string", "The text"), language=prop("string", "Target language")),
    tool("convert_currency", "Convert an amount of money.", ["amount", "source", "target"], amount=prop("number", "Amount"), source=prop("string", "Currency code"), target=prop("string", "Currency code")),
    tool("get_stock_price", "Get the price of a stock.", ["symbol"], symbol=prop("string", "Ticker symbol")),
    tool("set_light", "Switch a lamp on or off.", ["room", "on"], room=prop("string", "Name of the room"), on=prop("boolean", "True to switch on")),
    tool("find_route", "Find a route between two cities.", ["start", "destination"], start=prop("string", "Start"), destination=prop("string", "Destination"))]}


def tool_case(rng):
    """(question, [(name, arguments, result)], final answer, thought)"""
    city, other = rng.sample(CITIES, 2)
    kind = rng.choice(list(TOOLS) + ["get_weather", "two cities", "calculate", "get_weather", "read_file"])
    one = lambda q, name, args, result, a, t: (q, [(name, args, result)], a, t)
    js = lambda **kw: json.dumps(kw)
    if kind == "get_weather":
        temp, sky = rng.randint(-5, 35), rng.choice(["sunny", "cloudy", "rainy", "windy", "clear", "foggy"])
        args = {"city": city}
        q = rng.choice([f"What is the weather in {city}?", f"How is the weather in {city} today?", f"Is it warm in {city}?", f"Tell me the weather in {city}.", f"Weather in {city}?", f"What's the weather like in {city}?"])
        if rng.random() < 0.3:
            args["unit"] = "celsius"
            q = q.rstrip("?.") + ", in celsius?"
        return one(q, "get_weather", args, js(city=city, temperature=temp, condition=sky), f"It is {temp} degrees and {sky} in {city}.", f"The user wants the weather in {city}. I will call get_weather.")
    if kind == "two cities":
        a, b = rng.randint(-5, 35), rng.randint(-5, 35)
        return (f"Compare the weather in {city} and {other}.", [("get_weather", {"city": city}, js(city=city, temperature=a)), ("get_weather", {"city": other}, js(city=other, temperature=b))],
                f"It is {a} degrees in {city} and {b} degrees in {other}.", f"I need the weather of two cities, so I call get_weather twice: for {city} and for {other}.")
    if kind == "get_time":
        h, m = rng.randint(0, 23), rng.randint(0, 59)
        return one(rng.choice([f"What time is it in {city}?", f"What is the time in {city} now?"]), kind, {"city": city}, js(time=f"{h:02}:{m:02}"), f"It is {h:02}:{m:02} in {city}.", f"The user wants the time in {city}.")
    if kind == "calculate":
        x, y, op = rng.randint(10, 999), rng.randint(10, 99), rng.choice("+-*")
        r = {"+": x + y, "-": x - y, "*": x * y}[op]
        return one(rng.choice([f"What is {x} {op} {y}?", f"Calculate {x} {op} {y}.", f"Please compute {x} {op} {y}."]), kind, {"expression": f"{x} {op} {y}"}, js(result=r), f"{x} {op} {y} = {r}", f"I should use the calculator for {x} {op} {y}.")
    if kind == "search":
        t = rng.choice(TOPICS)
        args = {"query": t}
        q = rng.choice([f"Search the web for {t}.", f"Find pages about {t}.", f"Look up {t}."])
        if rng.random() < 0.4:
            n = rng.randint(2, 9)
            args["limit"] = n
            q = q.rstrip(".") + f" and give me {n} results."
        return one(q, kind, args, json.dumps([{"title": f"All about {t}", "url": "https://example.com/1"}, {"title": f"A history of {t}", "url": "https://example.com/2"}]),
                   f"I found two pages: \"All about {t}\" and \"A history of {t}\".", f"The user wants pages about {t}. I will search.")
    name = rng.choice(WORDS) + rng.choice([".txt", ".md", ".py", ".json", ".csv"])
    if kind == "read_file":
        text = f"The {rng.choice(WORDS)} is {rng.choice(ADJECTIVES)}."
        return one(rng.choice([f"Read the file {name}.", f"What is in {name}?", f"Show me the content of {name}.", f"Open {name} and tell me what it says."]), kind, {"path": name}, text, f"The file {name} says: {text}", f"I have to read {name} first.")
    if kind == "write_file":
        text = f"{rng.choice(NAMES)} likes {rng.choice(TOPICS)}."
        return one(f"Write \"{text}\" to {name}.", kind, {"path": name, "content": text}, js(ok=True), f"I wrote the text to {name}.", f"The user wants the text in the file {name}.")
    if kind == "list_files":
        folder = rng.choice(["src", "docs", "tests", "notes", "images", "data"])
        fs = [rng.choice(WORDS) + ".txt" for _ in range(3)]
        return one(rng.choice([f"Which files are in {folder}?", f"List the files in the folder {folder}."]), kind, {"path": folder}, json.dumps(fs), f"The folder {folder} has these files: {', '.join(fs)}.", f"I will list the folder {folder}.")
    if kind == "run_command":
        ask, cmd, res, a = rng.choice([("How much disk space is free?", "df -h", "42G free", "There are 42G free."), ("Which user am I?", "whoami", rng.choice(NAMES).lower(), None), ("Show the git status.", "git status", "nothing to commit, working tree clean", None),
                                       ("Run the tests.", "make test", "all tests passed", None), ("Which Python version is installed?", "python3 --version", f"Python 3.{rng.randint(8, 13)}.{rng.randint(0, 9)}", None), ("Count the lines of main.c.", "wc -l main.c", f"{number(rng, 900)} main.c", None)])
        return one(ask, kind, {"command": cmd}, res, a or f"The command `{cmd}` says: {res}", f"I can find out with `{cmd}`.")
    n = rng.choice(NAMES)
    if kind == "send_email":
        t = rng.choice(TOPICS)
        return one(f"Send an email to {n.lower()}@example.com about {t}.", kind, {"to": f"{n.lower()}@example.com", "subject": t.capitalize(), "body": f"Hello {n}, I would like to talk about {t}."}, js(sent=True), f"I sent the email about {t} to {n}.", f"I have to write an email to {n} about {t}.")
    if kind == "create_event":
        d, h, t = rng.choice(DAYS), rng.randint(8, 20), rng.choice(["lunch", "a meeting", "a call", "dinner", "a walk"])
        return one(f"Add {t} with {n} on {d} at {h} o'clock.", kind, {"title": f"{t.split()[-1].capitalize()} with {n}", "day": d, "hour": h}, js(ok=True), f"I added {t} with {n} on {d} at {h} o'clock.", f"The event is on {d} at {h}.")
    if kind == "set_timer":
        m = number(rng, 60)
        return one(rng.choice([f"Set a timer for {m} minutes.", f"Wake me in {m} minutes."]), kind, {"minutes": m}, js(ok=True), f"The timer is set for {m} minutes.", f"The timer must run {m} minutes.")
    if kind == "translate":
        w, lang = rng.choice([("good morning", ("French", "bonjour")), ("thank you", ("Spanish", "gracias")), ("the house", ("German", "das Haus")), ("water", ("Italian", "acqua")), ("the book", ("Spanish", "el libro")), ("bread", ("French", "pain"))])
        return one(f"Translate \"{w}\" into {lang[0]}.", kind, {"text": w, "language": lang[0]}, js(text=lang[1]), f"In {lang[0]}, \"{w}\" is \"{lang[1]}\".", f"I will ask for the {lang[0]} translation.")
    if kind == "convert_currency":
        x, (s, t) = number(rng, 500), rng.sample(["EUR", "USD", "GBP", "JPY", "CHF"], 2)
        r = round(x * rng.uniform(0.5, 2), 2)
        return one(rng.choice([f"How much is {x} {s} in {t}?", f"Convert {x} {s} to {t}."]), kind, {"amount": x, "source": s, "target": t}, js(amount=r, currency=t), f"{x} {s} are {r} {t}.", f"I convert {x} from {s} to {t}.")
    if kind == "get_stock_price":
        sym, p = rng.choice(["ABC", "XYZ", "ACME", "DEMO", "TEST"]), round(rng.uniform(5, 500), 2)
        return one(rng.choice([f"What is the price of {sym}?", f"How is the stock {sym} doing?"]), kind, {"symbol": sym}, js(symbol=sym, price=p), f"The price of {sym} is {p}.", f"I will look up the price of {sym}.")
    if kind == "set_light":
        room, on = rng.choice(["kitchen", "bedroom", "living room", "hall", "office"]), rng.random() < 0.5
        w = "on" if on else "off"
        return one(rng.choice([f"Turn {w} the light in the {room}.", f"Switch the {room} light {w}."]), kind, {"room": room, "on": on}, js(ok=True), f"The light in the {room} is {w} now.", f"The lamp in the {room} must go {w}.")
    km = rng.randint(100, 3000)
    return one(rng.choice([f"How do I get from {city} to {other}?", f"Find a route from {city} to {other}."]), "find_route", {"start": city, "destination": other}, js(distance_km=km), f"The route from {city} to {other} is {km} km long.", f"I look for a route from {city} to {other}.")


def tool_dialogue(rng):
    style = "json" if rng.random() < 0.4 else "xml"
    q, calls, final, thought = tool_case(rng)
    used = {n for n, _, _ in calls}
    names = list(used | set(rng.sample(list(TOOLS), rng.randint(0, 3))))
    rng.shuffle(names)
    out = [system_with_tools([TOOLS[n] for n in names], style, rng.choice(SYSTEMS) if rng.random() < 0.2 else None)]
    if rng.random() < 0.12:                                          # a turn that needs no tool
        small = rng.choice([greeting, fact, about_me])(rng)
        out += [turn("user", small[0]), answer(small[1])]
        if rng.random() < 0.5:
            return "".join(out)
    think = rng.random() < 0.35
    lead = rng.choice(["I will look that up.\n\n", "Let me check.\n\n"]) if rng.random() < 0.15 else ""
    body = lead + "\n".join(call(n, a, style) for n, a, _ in calls)
    out += [turn("user", q), answer(body, thought if think else None), tool_results([r for _, _, r in calls])]
    out.append(answer(final, "The tool has answered. I will tell the user the result." if think and rng.random() < 0.5 else None))
    return "".join(out)


def small_dialogue(rng):
    makers, weights = zip(*TASKS)
    turns = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        q, a, thought = rng.choices(makers, weights)[0](rng)
        turns.append((q, a, thought if rng.random() < 0.35 else None))
    return dialogue(turns, rng)


def made_dialogues(rng, n):
    seen = set()
    for i in range(n):
        doc = tool_dialogue(rng) if i % 5 < 2 else small_dialogue(rng)
        if doc not in seen and not held_out(doc):
            seen.add(doc)
            yield doc


# ---------------------------------------------------------------- countries

@dataclass
class Country:
    name: str
    article: str
    facts: list                     # (questions, answer, thought)


def clean(text):
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text or ""))).strip()


def field(d, *path):
    for p in path:
        d = d.get(p, {}) if isinstance(d, dict) else {}
    return clean(d.get("text", "") if isinstance(d, dict) else "")


def country(d):
    """a country's article and question-answer facts from one fact-book file, or None"""
    name = field(d, "Government", "Country name", "conventional short form")
    if not name or name == "none" or len(name) > 40:
        return None
    name = re.sub(r"\s*\(.*", "", name)
    capital = re.split(r"[;,(]", field(d, "Government", "Capital", "name"))[0].strip()
    area = re.split(r"[;(]", field(d, "Geography", "Area", "total") or field(d, "Geography", "Area", "total "))[0].strip()
    people = re.match(r"[\d,]+", field(d, "People and Society", "Population", "total") or field(d, "People and Society", "Population"))
    where, climate, terrain = field(d, "Geography", "Location"), field(d, "Geography", "Climate"), field(d, "Geography", "Terrain")
    language = re.split(r"[;(]|\d", field(d, "People and Society", "Languages", "Languages"))[0].strip(" ,")
    money = re.split(r"[(;]", field(d, "Economy", "Exchange rates", "Currency") or "")[0].strip()
    background = field(d, "Introduction", "Background")
    article = f"# {name}\n\n{background}\n\n" + "".join(
        f"## {h}\n\n{field(d, *p)}\n\n" for h, p in (("Location", ("Geography", "Location")), ("Climate", ("Geography", "Climate")), ("Terrain", ("Geography", "Terrain")),
                                                    ("Government", ("Government", "Government type")), ("Economy", ("Economy", "Economic overview")), ("Industries", ("Economy", "Industries")),
                                                    ("Natural resources", ("Geography", "Natural resources")), ("Environment", ("Environment", "Environmental issues"))) if field(d, *p))
    facts = []
    if capital and len(capital) < 40:
        facts.append(([f"What is the capital of {name}?", f"What's the capital city of {name}?", f"Name the capital of {name}."], f"The capital of {name} is {capital}.", f"The user asks for the capital of {name}. It is {capital}."))
        facts.append(([f"{capital} is the capital of which country?", f"Which country has the capital {capital}?"], f"{capital} is the capital of {name}.", f"{capital} is a capital. The country is {name}."))
    if people:
        facts.append(([f"How many people live in {name}?", f"What is the population of {name}?"], f"About {people.group(0)} people live in {name}.", f"The population of {name} is about {people.group(0)}."))
    if area and "sq km" in area:
        facts.append(([f"How large is {name}?", f"What is the area of {name}?"], f"{name} has an area of {area}.", f"The area of {name} is {area}."))
    if where:
        facts.append(([f"Where is {name}?", f"Where is {name} located?"], f"{name} is located in {where}." if not where.startswith(("island", "two", "group")) else f"{name}: {where}.", f"I have to describe where {name} lies."))
    if climate and len(climate) < 250:
        facts.append(([f"What is the climate of {name}?", f"How is the climate in {name}?"], f"The climate of {name}: {climate}.", f"The user asks about the climate of {name}."))
    if terrain and len(terrain) < 250:
        facts.append(([f"Describe the terrain of {name}.", f"What does the land in {name} look like?"], f"The terrain of {name}: {terrain}.", None))
    if language and len(language) < 40:
        facts.append(([f"Which language is spoken in {name}?", f"What language do people speak in {name}?"], f"People in {name} speak {language}.", f"A main language of {name} is {language}."))
    if money and len(money) < 40:
        facts.append(([f"What is the currency of {name}?", f"Which money is used in {name}?"], f"The currency of {name} is {money}.", None))
    short = in_short(name, where, capital, people, language, money, climate)
    if short:
        ask = [f"Tell me about {name}.", f"What do you know about {name}?", f"Describe {name}.", f"Tell me something about {name}.", f"What is {name}?"]
        facts += [(ask, short, f"{name} is a country. I will say where it lies and name its capital, its people and its climate.")] * 2
    if 200 < len(background) < 1500:
        facts.append(([f"Write a short text about the history of {name}.", f"Tell me about the history of {name}."], background, f"I will tell a little about the history of {name}."))
    return Country(name, article, facts)


def in_short(name, where, capital, people, language, money, climate):
    """a country in up to six short sentences, always in the same order; empty where the book does not say where it lies"""
    if not where or not capital or len(capital) > 40:
        return ""
    n = int(people.group(0).replace(",", "") or 0) if people else 0
    size = f"{n / 1e6:.0f} million" if n > 1_500_000 else f"{round(n, -4):,}" if n > 20_000 else f"{round(n, -2):,}"
    place, *near = re.split(r"[;(]", where)[0].strip().split(", ")
    out = [f"{name} is a country in {'the ' if place in ('Caribbean', 'Middle East', 'Balkans') else ''}{place}." if re.match("[A-Z]", place) else f"{name}: {place}."]
    if near:
        near = ", ".join(near)
        noun = re.match("(group|island|peninsula|archipelago|(two|three|four)-)", near)
        out.append(f"It borders {near[10:]}." if near.startswith("bordering ") else f"It is {'a ' if noun else ''}{near}.")
    out.append(f"The capital of {name} is {capital}.")
    if n:
        out.append(f"About {size} people live in {name}.")
    if language and len(language) < 40:
        out.append(f"They speak {language}.")
    money = re.split(r"/| per ", money)[0].strip()
    if money and len(money) < 40:
        out.append(f"They pay in {money}.")
    if climate:
        out.append(f"The climate is {re.split('[;,(]', climate)[0].split(' with ')[0].strip()}.")
    return " ".join(out)


def country_dialogues(countries, rng, n):
    if not countries:
        return
    for _ in range(n):
        turns = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            questions, text, thought = rng.choice(rng.choice(countries).facts or [(["Hello"], "Hello!", None)])
            turns.append((rng.choice(questions), text, thought if rng.random() < 0.35 else None))
        doc = dialogue(turns, rng)
        if not held_out(doc):
            yield doc
