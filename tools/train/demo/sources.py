"""The demo corpus: every source, its licence, and which of its files are read.

Only public-domain and permissively licensed text is listed (MIT, BSD, ISC, Apache-2.0, BSL-1.0, PSF, CC0, CC BY).
Nothing under GPL, LGPL, MPL, NC or SA terms may be added. `corpus.py` reads this table; it is also the source of the
table in the model card.

A source is a git directory (`owner+name`) or, where `tree` is true, an unpacked folder of the same name.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    name: str                    # owner/name of the public repository, or the folder name of an unpacked package
    licence: str
    kind: str                    # code, markdown, books, openstax, factbook, tldr, smalltalk, snippets
    ext: tuple = ()
    include: str = ""            # regular expression on the path; empty: everything
    exclude: str = ""
    cap_mb: float = 1e9          # stop after this many megabytes
    hold: int = 0                # one file in `hold` goes to the sibling validation split; 1: the whole project is held out
    tree: bool = False


PY, CPP, C = (".py",), (".cpp", ".hpp", ".cc", ".h", ".ipp", ".cxx"), (".c", ".h")
SKIP = r"(^|/)(third_party|3rdparty|_?vendor(ed)?|external|generated|autogen|locale|i18n|dist|node_modules|extern|_lib/array_api|data)/"
SKIP_TESTS = SKIP + r"|(^|/)(tests?|testing)/"

SOURCES = [
    # ---- held out: whole projects that no training document comes from
    Source("keon/algorithms", "MIT", "code", PY, hold=1),
    Source("google/leveldb", "BSD-3-Clause", "code", (".cc", ".h"), hold=1),
    Source("tornadoweb/tornado", "Apache-2.0", "code", PY, r"^tornado/", hold=1),
    Source("boostorg/json", "BSL-1.0", "code", (".hpp", ".ipp"), r"^include/", hold=1),
    # ---- prose
    Source("mlschmitt/classic-books-markdown", "public domain", "books", (".md",)),
    Source("MicrosoftDocs/cpp-docs", "CC BY 4.0", "markdown", (".md",), r"^docs/", r"toc\.md|TOC|error-messages|compiler-(errors|warnings)", 20),
    Source("MicrosoftDocs/PowerShell-Docs", "CC BY 4.0", "markdown", (".md",), r"reference/(7\.5|docs-conceptual)/", "", 7),
    Source("MicrosoftDocs/win32", "CC BY 4.0", "markdown", (".md",), "", r"toc\.md|TOC", 20),
    Source("MicrosoftDocs/windows-driver-docs", "CC BY 4.0", "markdown", (".md",), "", r"toc\.md|TOC", 14),
    Source("MicrosoftDocs/WSL", "CC BY 4.0", "markdown", (".md",)),
    Source("dotnet/EntityFramework.Docs", "CC BY 4.0", "markdown", (".md",)),
    Source("dotnet/csharpstandard", "CC BY 4.0", "markdown", (".md",), r"^standard/"),
    Source("microsoft/TypeScript-Website", "CC BY 4.0", "markdown", (".md",), r"documentation/copy/en|playground|tsconfig-reference/copy/en"),
    Source("python/peps", "public domain / CC0", "markdown", (".rst",), r"^peps/"),
    Source("google/eng-practices", "CC BY 3.0", "markdown", (".md",)),
    Source("rust-lang/book", "MIT or Apache-2.0", "markdown", (".md",), r"^src/"),
    Source("rust-lang/rust-by-example", "MIT or Apache-2.0", "markdown", (".md",), r"^src/"),
    Source("donnemartin/system-design-primer", "CC BY 4.0", "markdown", ("README.md",)),
    Source("30-seconds/30-seconds-of-code", "CC0 (text CC BY 4.0)", "snippets", (".md",), r"^content/"),
    Source("dylanaraps/pure-bash-bible", "MIT", "markdown", ("README.md",)),
    Source("libuv/libuv", "MIT, docs CC BY 4.0", "markdown", (".rst",), r"^docs/"),
    Source("numpy/numpy", "BSD-3-Clause", "markdown", (".rst",), r"^doc/", r"release"),
    Source("scipy/scipy", "BSD-3-Clause", "markdown", (".rst", ".md"), r"^doc/", r"release"),
    Source("sympy/sympy", "BSD-3-Clause", "markdown", (".rst", ".md"), r"^doc/", r"release|aboutus"),
    Source("fastapi/fastapi", "MIT", "markdown", (".md",), r"^docs/en/docs/(?!release)"),
    Source("curl/curl", "curl (MIT-like)", "markdown", (".md",), r"^docs/", r"RELEASE|THANKS|CHANGES"),
    Source("google/highway", "Apache-2.0 or BSD-3-Clause", "markdown", (".md",)),
    Source("simdjson/simdjson", "MIT or Apache-2.0", "markdown", (".md",)),
    Source("nlohmann/json", "MIT", "markdown", (".md",), r"^docs/mkdocs"),
    Source("gabime/spdlog", "MIT", "markdown", (".md",)),
    Source("sqlalchemy/sqlalchemy", "MIT", "markdown", (".rst",), r"^doc/build/", r"changelog"),
    Source("twisted/twisted", "MIT", "markdown", (".rst",), r"^docs/"),
    Source("pytest-dev/pytest", "MIT", "markdown", (".rst",), r"^doc/en/", r"changelog|announce"),
    Source("python/mypy", "MIT", "markdown", (".rst",), r"^docs/"),
    Source("pydantic/pydantic", "MIT", "markdown", (".md",), r"^docs/"),
    Source("statsmodels/statsmodels", "BSD-3-Clause", "markdown", (".rst",), r"^docs/", r"release"),
    Source("astropy/astropy", "BSD-3-Clause", "markdown", (".rst",), r"^docs/", r"whatsnew|changes"),
    Source("networkx/networkx", "BSD-3-Clause", "markdown", (".rst",), r"^doc/", r"release"),
    Source("apache/arrow", "Apache-2.0", "markdown", (".rst", ".md"), r"^docs/"),
    Source("duckdb/duckdb", "MIT", "markdown", (".md",)),
    Source("trekhleb/javascript-algorithms", "MIT", "markdown", ("README.md",), r"^src"),
    Source("ohmyzsh/ohmyzsh", "MIT", "markdown", (".md",)),
    Source("openstax/osbooks-introduction-anthropology", "CC BY 4.0", "openstax", (".cnxml",)),
    Source("openstax/osbooks-principles-economics-bundle", "CC BY 4.0", "openstax", (".cnxml",)),
    Source("openstax/osbooks-life-liberty-and-pursuit-happiness", "CC BY 4.0", "openstax", (".cnxml",)),
    Source("openstax/osbooks-introduction-python-programming", "CC BY 4.0", "openstax", (".cnxml",)),
    # ---- questions and answers
    Source("factbook/factbook.json", "CC0 / public domain", "factbook", (".json",)),
    Source("tldr-pages/tldr", "CC BY 4.0", "tldr", (".md",), r"^pages/"),
    Source("gunthercox/chatterbot-corpus", "BSD-3-Clause", "smalltalk", (".yml",), r"data/english/", r"gossip|politics|profanity|humor|emotion|psychology"),
    # ---- Python
    Source("python-standard-library", "PSF-2.0", "code", PY, "", r"(^|/)(idlelib|lib2to3|encodings|pydoc_data|site-packages|ensurepip)/|encoded_modules|badsyntax|cjkencodings|test_unicode", 20, 200, True),
    Source("TheAlgorithms/Python", "MIT", "code", PY, hold=100),
    Source("norvig/pytudes", "MIT", "code", PY),
    Source("donnemartin/interactive-coding-challenges", "Apache-2.0", "code", PY),
    Source("more-itertools/more-itertools", "MIT", "code", PY),
    Source("NVIDIA/Model-Optimizer", "Apache-2.0", "code", PY, "", SKIP, 9, 200),
    Source("sgl-project/SpecForge", "MIT", "code", PY),
    Source("tinygrad/tinygrad", "MIT", "code", PY, r"^(tinygrad|test|examples|extra)/", r"autogen|assembly|amd/", 5),
    Source("fastapi/fastapi", "MIT", "code", PY, r"^(fastapi|scripts)/"),
    Source("openai/openai-python", "Apache-2.0", "code", PY, r"^(src/openai/(_|lib)|examples)", "", 2),
    Source("pytorch/examples", "BSD-3-Clause", "code", PY),
    Source("keras-team/keras", "Apache-2.0", "code", PY, "", SKIP, 7, 200),
    Source("sympy/sympy", "BSD-3-Clause", "code", PY, r"^sympy/", SKIP + r"|(^|/)tests/.*(risch|hyper|meijer)|rubi/|bench_solvers", 12, 200),
    Source("numpy/numpy", "BSD-3-Clause", "code", (".py", ".c", ".h", ".cpp"), r"^numpy/", r"simd/|f2py/tests|umath/.*generated|loops", 9, 200),
    Source("scipy/scipy", "BSD-3-Clause", "code", PY, r"^scipy/", SKIP + r"|tests/data|test_data", 9, 200),
    Source("networkx/networkx", "BSD-3-Clause", "code", PY, "", SKIP, 5, 100),
    Source("astropy/astropy", "BSD-3-Clause", "code", PY, r"^astropy/", SKIP, 7, 200),
    Source("statsmodels/statsmodels", "BSD-3-Clause", "code", PY, r"^statsmodels/", SKIP + r"|tests/results|datasets", 6, 200),
    Source("nltk/nltk", "Apache-2.0", "code", PY, r"^nltk/", SKIP, 4),
    Source("sphinx-doc/sphinx", "BSD-2-Clause", "code", PY, r"^sphinx/", SKIP, 3),
    Source("sqlalchemy/sqlalchemy", "MIT", "code", PY, r"^(lib|test|examples)/", "", 8, 200),
    Source("twisted/twisted", "MIT", "code", PY, r"^src/", r"_version", 7, 200),
    Source("pytest-dev/pytest", "MIT", "code", PY, "", "", 4, 100),
    Source("aio-libs/aiohttp", "Apache-2.0", "code", PY, "", "", 4, 100),
    Source("Textualize/rich", "MIT", "code", PY, "", r"_emoji|_unicode|cells|palette", 3),
    Source("python/mypy", "MIT", "code", PY, r"^(mypy|mypyc)/", r"typeshed", 5, 100),
    Source("psf/black", "MIT", "code", PY, r"^(src|tests/test_)", r"blib2to3", 2),
    Source("pydantic/pydantic", "MIT", "code", PY, "", "", 4, 100),
    Source("pallets/flask", "BSD-3-Clause", "code", PY),
    Source("django", "BSD-3-Clause", "code", PY, "", SKIP + r"|conf/locale|migrations", 5, 200, True),
    Source("pandas", "BSD-3-Clause", "code", PY, "", SKIP, 8, 200, True),
    Source("scikit_learn", "BSD-3-Clause", "code", PY, "", SKIP, 7, 200, True),
    Source("matplotlib", "matplotlib (PSF-like)", "code", PY, "", SKIP + r"|_mathtext_data|_cm", 5, 200, True),
    Source("scikit_image", "BSD-3-Clause", "code", PY, "", SKIP, 3, 0, True),
    Source("biopython", "Biopython (permissive) or BSD-3-Clause", "code", PY, "", SKIP + r"|substitution_matrices|IUPACData|CodonTable|codonalign", 5, 0, True),
    Source("jinja2", "BSD-3-Clause", "code", PY, tree=True, exclude=r"_identifier"),
    Source("werkzeug", "BSD-3-Clause", "code", PY, tree=True),
    Source("click", "BSD-3-Clause", "code", PY, tree=True),
    Source("requests", "Apache-2.0", "code", PY, tree=True),
    # ---- C and C++
    Source("duckdb/duckdb", "MIT", "code", CPP, r"^src/|^extension/", SKIP + r"|unicode|tpc|include_icu|icu/", 10, 250),
    Source("curl/curl", "curl (MIT-like)", "code", C, "", "", 7, 250),
    Source("ggml-org/ggml", "MIT", "code", (".c", ".cpp", ".h"), "", r"vulkan-shaders|opencl|stb_|iqk", 6, 250),
    Source("NVIDIA/cutlass", "BSD-3-Clause", "code", (".h", ".hpp"), r"^(include|examples|tools)/", r"generated|atom/|mma_sm", 4, 250),
    Source("ml-explore/mlx", "MIT", "code", (".cpp", ".h", ".py"), "", r"3rdparty|fp8|bf16_math", 4, 200),
    Source("abseil/abseil-cpp", "Apache-2.0", "code", (".cc", ".h"), "", "", 6, 250),
    Source("facebook/folly", "Apache-2.0", "code", (".cpp", ".h"), r"^folly/", "", 8, 250),
    Source("protocolbuffers/protobuf", "BSD-3-Clause", "code", (".cc", ".h", ".py"), r"^(src|python|upb)/", SKIP + r"|upb_generator|\.pb\.|upb/reflection/stage", 6, 250),
    Source("apache/arrow", "Apache-2.0", "code", (".cc", ".h"), r"^cpp/src/(arrow|parquet)", SKIP + r"|_generated|codegen", 7, 250),
    Source("microsoft/STL", "Apache-2.0 with LLVM exception", "code", (".cpp", ".hpp", ""), r"^(stl/(inc|src)|tests/std/tests)/", r"special_math|charconv_tables|unicode|\.txt|\.lst|\.md|_tables|\.py|test_cases|\.dat", 5, 250),
    Source("google/highway", "Apache-2.0 or BSD-3-Clause", "code", (".cc", ".h"), r"^hwy/", "", 4, 250),
    Source("google/gemma.cpp", "Apache-2.0", "code", (".cc", ".h"), "", "", 2),
    Source("google/re2", "BSD-3-Clause", "code", (".cc", ".h"), "", r"unicode_", 2),
    Source("simdjson/simdjson", "MIT or Apache-2.0", "code", (".cpp", ".h"), "", r"singleheader|dependencies", 2.5),
    Source("TheAlgorithms/C-Plus-Plus", "MIT", "code", CPP, hold=60),
    Source("OpenNMT/CTranslate2", "MIT", "code", (".cc", ".h", ".py"), "", SKIP, 2),
    Source("nlohmann/json", "MIT", "code", CPP, r"^include/|^tests/src/unit-(algorithms|allocator|capacity|concepts|constructor|conversions|element|items|iterators|json_p|merge|modif|point|ref|ser|udt)", "", 2),
    Source("fmtlib/fmt", "MIT", "code", CPP, r"^(include|src|test)/", r"gmock|gtest"),
    Source("gabime/spdlog", "MIT", "code", CPP, r"^(include|src|tests|example)/", r"fmt/bundled|catch"),
    Source("catchorg/Catch2", "BSL-1.0", "code", CPP, r"^(src|examples|tests)/", SKIP),
    Source("boostorg/asio", "BSL-1.0", "code", CPP, "", "", 3),
    Source("boostorg/beast", "BSL-1.0", "code", CPP, r"^(include|example)/", "", 2),
    Source("boostorg/math", "BSL-1.0", "code", CPP, r"^(include|example)/", r"lookup|_data|prime", 3),
    Source("boostorg/geometry", "BSL-1.0", "code", CPP, r"^(include|example)/", r"srs|epsg|esri|iau", 3),
    Source("boostorg/container", "BSL-1.0", "code", CPP, r"^(include|example|test)/", "", 2),
    Source("ocornut/imgui", "MIT", "code", (".cpp", ".h"), "", r"stb|imgui_draw|icons|font|glad|loader"),
    Source("libuv/libuv", "MIT", "code", C, r"^(src|include|test|docs/code)/", "", 2.5),
    Source("nginx/nginx", "BSD-2-Clause", "code", C, r"^src/", "", 4, 150),
    Source("tmux/tmux", "ISC", "code", C, "", r"compat/|utf8"),
    Source("jqlang/jq", "MIT", "code", C, r"^src/", r"lexer|parser|decNumber"),
    Source("memcached/memcached", "BSD-3-Clause", "code", C, "", r"vendor|itoa_ljust|xxhash|murmur|jenkins|base64|queue\.h|md5"),
    Source("karpathy/llm.c", "MIT", "code", (".c", ".py", ".cu", ".h", ".cuh")),
    Source("antirez/ds4", "MIT", "code", C, "", "", 2),
    Source("zeux/calm", "MIT", "code", C),
    # ---- other languages
    Source("cline/cline", "Apache-2.0", "code", (".ts", ".tsx"), "", SKIP + r"|locales", 5, 250),
    Source("continuedev/continue", "Apache-2.0", "code", (".ts", ".tsx"), "", SKIP + r"|tree-sitter", 4, 250),
    Source("trekhleb/javascript-algorithms", "MIT", "code", (".js",), r"^src"),
    Source("gin-gonic/gin", "MIT", "code", (".go",)),
    Source("tokio-rs/tokio", "MIT", "code", (".rs",), "", "", 4),
    Source("BurntSushi/ripgrep", "MIT or Unlicense", "code", (".rs",)),
    Source("ohmyzsh/ohmyzsh", "MIT", "code", (".sh", ".zsh"), "", r"emoji"),
    Source("nvm-sh/nvm", "MIT", "code", (".sh",)),
    Source("pyenv/pyenv", "MIT", "code", (".sh", ".bash")),
    Source("bats-core/bats-core", "MIT", "code", (".bash", ".bats", ".sh")),
]
