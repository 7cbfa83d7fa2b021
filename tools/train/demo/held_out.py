"""A text of whole source files, for measuring code loss on projects that no corpus has.

usage: held_out.py OUT.txt BYTES EXTENSIONS FOLDER ...      for instance: held_out.py python.txt 120000 .py celery/ trio/
Every folder (a project) gives an equal share. Files of 1 to 12 kB are taken in the order of their names' checksums, tests and generated files left out.
"""
import os
import re
import sys
import zlib


def files(folder, extensions):
    for path, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(path, name)
            inside = os.path.relpath(full, folder)
            if name.endswith(extensions) and not re.search(r"(^|/)(tests?|testing|vendor|third.?party|_?generated|build)(/|_)|_pb2|version", inside, re.I) and 1000 <= os.path.getsize(full) <= 12_000:
                yield zlib.crc32(inside.encode()), full


def main():
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    out, size, extensions, folders = sys.argv[1], int(sys.argv[2]), tuple(sys.argv[3].split(",")), sys.argv[4:]
    texts = []
    for folder in folders:
        left, n = size // len(folders), 0
        for _, path in sorted(files(folder, extensions)):
            with open(path, encoding="utf8", errors="strict") as f:
                text = f.read().strip() + "\n\n"
            if len(text) <= left:
                texts.append(text)
                left, n = left - len(text), n + 1
        print(f"{folder}: {n} files, {size // len(folders) - left} bytes")
    with open(out, "w", encoding="utf8") as f:
        f.write("".join(texts))


if __name__ == "__main__":
    main()
