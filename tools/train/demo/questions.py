"""Prompts for ../capture.py: chat questions without answers, all written by templates or asking for documented functions.

usage: questions.py N [--python DIR ...] [--held-out FILE.json] > prompts.jsonl
  N           how many to draw; equal ones are written once, so somewhat fewer come out
  --python    folders of permissively licensed Python: up to two fifths of the prompts ask for one of their functions by its docstring
  --held-out  one prompt in a thousand, and hand-written ones in words that no template has, go here instead (for ../evaluate.py)
Kinds: small tasks (sums, words, lists, dates), open questions about a few hundred subjects, functions to write.
"""
import argparse
import ast
import json
import os
import random
import re
import zlib

import conversations

OPEN = """Give me three tips for {x}.|Give me some advice about {x}.|What are the advantages of {x}?|What are the disadvantages of {x}?|Explain {x} in simple words.|Explain {x} to a beginner.
What is {x}?|What do you know about {x}?|How does {x} work?|Tell me about {x}.|Write a short story about {x}.|Write a poem about {x}.|Write a short text about {x}.|Write two sentences about {x}.
Write an email to a friend about {x}.|Write a formal letter about {x}.|Why is {x} important?|Why do people care about {x}?|How can I learn more about {x}?|How do I start with {x}?|Make a plan for a day with {x}.
Write a short dialogue about {x}.|What should I know about {x}?|Summarize the history of {x}.|List five facts about {x}.|List the main ideas of {x}.|Compare {x} and {y}.|What is the difference between {x} and {y}?
Write a product description for {x}.|What questions should I ask about {x}?|Give me ideas for a talk about {x}.|Describe {x} to a child.|Describe {x} in one paragraph.|What are common mistakes with {x}?
What would the world be like without {x}?|Is {x} worth the effort?|Write an introduction for an essay about {x}.|Write a headline and a short news report about {x}.|Which books should I read about {x}?
How has {x} changed over time?|Give an example of {x} in everyday life.|What problems can {x} cause?|Can you help me with {x}?|I want to understand {x}. Where do I begin?|Invent a slogan for {x}.""".replace("\n", "|").split("|")
SUBJECTS = """sleeping better|healthy food|learning a language|a small garden|saving money|public transport|solar energy|a job interview|time management|the water cycle|remote work|friendship
electric cars|recycling|climate change|a birthday party|a new phone|the solar system|reading books|swimming|chess|photography|cooking pasta|a city trip|teamwork|online safety|machine learning|databases
open source software|unit tests|version control|the human heart|vaccines|volcanoes|democracy|the printing press|artificial intelligence|whales|black holes|photosynthesis|the immune system|earthquakes
the French Revolution|the Roman Empire|ancient Egypt|the Renaissance|the Industrial Revolution|the moon landing|the Silk Road|human rights|the United Nations|elections|inflation|interest rates|the stock market
supply and demand|insurance|taxes|starting a small business|marketing|a business plan|customer service|leadership|negotiation|public speaking|writing a report|taking notes|studying for an exam|memory
stress|meditation|yoga|running|strength training|a marathon|hiking|camping|cycling to work|football|basketball|tennis|skiing|sailing|fishing|knitting|painting|drawing portraits|playing the guitar|the piano
jazz|classical music|film making|theatre|modern art|architecture|bridges|skyscrapers|trains|aeroplanes|rockets|satellites|GPS|the internet|search engines|email|social media|mobile apps|web browsers
operating systems|computer networks|encryption|passwords|cloud computing|programming languages|recursion|sorting algorithms|hash tables|linked lists|binary trees|regular expressions|debugging|code review
documentation|software design|APIs|JSON|SQL|Python decorators|object-oriented programming|functional programming|concurrency|compilers|the command line|Linux|robots|neural networks|statistics|probability
linear algebra|calculus|prime numbers|geometry|logic puzzles|the scientific method|gravity|electricity|magnetism|light|sound|atoms|chemical reactions|acids and bases|the periodic table|water|air pollution
plastic waste|rain forests|oceans|coral reefs|rivers|deserts|glaciers|mountains|the weather|hurricanes|seasons|evolution|dinosaurs|genes|cells|bacteria|viruses|antibiotics|the brain|the lungs|bones|digestion
vitamins|sugar|coffee|tea|bread|cheese|chocolate|soup|breakfast|vegetarian cooking|a healthy breakfast|pizza|rice|spices|apples|honey|bees|butterflies|birds|cats|dogs|horses|elephants|penguins|sharks|ants
trees|roses|farming|a vegetable garden|composting|moving to a new city|renting a flat|buying a house|furniture|cleaning the kitchen|laundry|a budget|a wedding|a family holiday|a road trip|travelling alone
learning to drive|first aid|a cold|headaches|back pain|good posture|glasses|teeth|parenting|children and screens|schools|universities|libraries|museums|volunteering|charity|honesty|courage|patience|happiness
love|anger|fear|dreams|art and science|freedom|justice|privacy|advertising|newspapers|radio|television|video games|board games|magic tricks|science fiction|fairy tales|Shakespeare|poetry|a diary|handwriting
calendars|clocks|maps|the alphabet|translation|sign language|Latin|Spanish|Japanese food|Chinese New Year|the Olympic Games|Christmas|tourism|hotels|cruise ships|lighthouses|castles|pirates|knights|space travel
Mars|the sun|telescopes|microscopes|batteries|light bulbs|bicycles|engines|steel|glass|paper|cotton|wool|gold|diamonds|oil|wind power|nuclear power|energy saving|recycled paper|a sharing economy""".replace("\n", "|").split("|")
FUNCTION = ["Write a Python function `{n}`. {d}", "Implement `{n}` in Python. {d}", "{d} Write this as a Python function named `{n}`.", "Please write a Python function called `{n}`.\n\n{d}",
            "Complete this Python function:\n\n```python\n{s}\n```\n\n{d}"]
MANNER = ["Keep it short.", "Answer in one sentence.", "Use a list.", "Explain it step by step.", "Give an example.", "Use simple words.", "I am ten years old.", "Write at least three paragraphs."]
OWN_WORDS = ["My neighbour's dog barks all night. What could I say to him without starting a fight?", "Which planet has the most moons, and how were they found?", "I have eggs, spinach and old bread. What can I cook tonight?",
             "Rewrite this sentence so that it sounds polite: Send me the file now.", "How would you explain to my grandmother what a web server does?", "Turn these words into a tidy list: milk, screws, stamps, cat food.",
             "Name a few ways to keep a wooden boat from rotting.", "Write a Python script that renames all .txt files in a folder by adding today's date.", "Can you write a loop in C that prints the squares of 1 to 10?",
             "What happens to my body when I hold my breath?", "Draft a short note telling my team that the meeting moves to Thursday.", "Why do leaves turn red in autumn?"]


def docstrings(folders):
    """(name, first paragraph of the docstring, signature) of public functions, those of one file together"""
    for folder in folders:
        for path, dirs, files in os.walk(folder):
            dirs.sort()
            for name in sorted(f for f in files if f.endswith(".py")):
                with open(os.path.join(path, name), encoding="utf8", errors="ignore") as f:
                    text = f.read()
                try:
                    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
                except (SyntaxError, ValueError, RecursionError):
                    continue
                for n in nodes:
                    first = re.sub(r"\s+", " ", (ast.get_docstring(n) or "").split("\n\n")[0]).strip()
                    if 15 < len(first) < 250 and ">>>" not in first and first.isascii():
                        yield n.name, first, text.split("\n")[n.lineno - 1].strip()


def questions(rng, n, functions):
    makers, weights = zip(*conversations.TASKS)
    subjects = SUBJECTS + conversations.TOPICS
    coding = min(n * 2 // 5, len(functions))
    for name, about, signature in rng.sample(functions, coding):
        yield "function", rng.choice(FUNCTION).format(n=name, d=about, s=signature)
    for _ in range((n - coding) * 3 // 10):
        yield "task", rng.choices(makers, weights)[0](rng)[0]
    for _ in range((n - coding) * 7 // 10):
        x, y = rng.sample(subjects, 2)
        yield "open", rng.choice(OPEN).format(x=x, y=y) + (" " + rng.choice(MANNER) if rng.random() < 0.4 else "")


def ask(text):
    return [{"role": "user", "content": text}]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("n", type=int)
    p.add_argument("--python", nargs="*", default=[])
    p.add_argument("--held-out")
    a = p.parse_args()
    rng = random.Random(a.n)
    found = {text: kind for kind, text in questions(rng, a.n, sorted(set(docstrings(a.python)))) if not conversations.held_out(text)}
    texts = sorted(found)
    rng.shuffle(texts)
    kept = [t for t in texts if zlib.crc32(t.encode()) % 1000 == 0] if a.held_out else []
    if a.held_out:
        rows = [{"name": f"{found[t]}-{i}", "kind": found[t], "messages": ask(t)} for i, t in enumerate(sorted(kept, key=found.get))]
        rows += [{"name": f"own-{i}", "kind": "own words", "messages": ask(t)} for i, t in enumerate(OWN_WORDS)]
        with open(a.held_out, "w", encoding="utf8") as f:
            json.dump(rows, f, indent=1)
    for text in texts:
        if text not in kept:
            print(json.dumps({"messages": ask(text)}))


if __name__ == "__main__":
    main()
