"""Set-ups of Go, Rust, Ruby, PHP and C projects, and of servers."""

from collections.abc import Mapping
from typing import Any

from tests.system.copies.setups import SetUp

GO = (("go", "golang-go"),)
CARGO = (("cargo", "cargo"),)
BUNDLER = (("ruby", "ruby"), ("bundle", "bundler"))
COMPOSER = (("php", "php-cli"), ("composer", "composer"))
MAKE = (("make", "make"), ("cc", "build-essential"))

GO_IGNORED = {".gitignore": "bin/\n"}
GO_TEST = 'package x\n\nimport "testing"\n\nfunc TestF(t *testing.T) {\n\tif F() != 1 {\n\t\tt.Fatal()\n\t}\n}\n'
GO_LIB = {"go.mod": "module lib\n\ngo 1.19\n", "l.go": "package lib\n\nconst V = 1\n"}


def beneath(folder: str, files: Mapping[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def go(name: str, replaces: str = "", **fields: Any) -> SetUp:
    """Return a Go module; if it `replaces` the module `lib` by a folder, it uses that."""
    module, value, source = "module x\n\ngo 1.19\n", "1", "package x\n\n"
    if replaces:
        module += f"\nrequire lib v0.0.0\n\nreplace lib => {replaces}\n"
        source, value = f'{source}import "lib"\n\n', "lib.V"
    row: dict[str, Any] = {
        "files": {
            **GO_IGNORED,
            **(beneath("lib" if replaces.startswith("{main}") else "../lib", GO_LIB) if replaces else {}),
            "go.mod": module,
            "a.go": f"{source}func F() int {{ return {value} }}\n",
            "a_test.go": GO_TEST,
        },
        "check": "go test ./...",
        "broken": ("a.go", f"return {value}", f"return {value} + 1"),
        "env": {"GOFLAGS": "-mod=mod", "GOPROXY": "off"},
        "needs": GO,
    }
    return SetUp(name=name, **{**row, **fields})


CRATE = {
    ".gitignore": "target/\n",
    "Cargo.toml": '[package]\nname = "x"\nversion = "0.1.0"\nedition = "2021"\n',
    "src/lib.rs": "pub fn f() -> i32 { 1 }\n#[test]\nfn t() { assert_eq!(f(), 1) }\n",
}


def cargo(name: str, prepare: str = "cargo -q test --offline > /dev/null", **fields: Any) -> SetUp:
    row: dict[str, Any] = {
        "files": CRATE,
        "check": "cargo -q test --offline",
        "broken": ("src/lib.rs", "i32 { 1 }", "i32 { 2 }"),
        "needs": CARGO,
    }
    return SetUp(name=name, prepare=prepare, **{**row, **fields})


GEM = {
    ".gitignore": ".bundle/\nvendor/bundle/\nGemfile.lock\n",
    "lib/x.rb": "def f; 1; end\n",
    "t.rb": 'require "x"; exit(f == 1)\n',
}
GEMSPEC = {
    "Gemfile": "gemspec\n",
    "x.gemspec": 'Gem::Specification.new { |s| s.name = "x"; s.version = "0.1"; s.summary = "x"; s.authors = ["a"]; '
    's.files = ["lib/x.rb"] }\n',
}


def ruby(name: str, **fields: Any) -> SetUp:
    row: dict[str, Any] = {
        "files": {**GEM, **GEMSPEC},
        "check": "bundle exec ruby t.rb",
        "broken": ("lib/x.rb", "; 1;", "; 2;"),
        "needs": BUNDLER,
    }
    return SetUp(name=name, **{**row, **fields})


PHP = {
    ".gitignore": "vendor/\ncomposer.lock\n",
    "src/A.php": "<?php namespace X; class A { static function f() { return 1; } }\n",
    "t.php": '<?php require "vendor/autoload.php"; exit(X\\A::f() == 1 ? 0 : 1);\n',
    "composer.json": '{"name": "a/x", "autoload": {"psr-4": {"X\\\\": "src/"}}}\n',
}


def php(name: str, **fields: Any) -> SetUp:
    row: dict[str, Any] = {
        "files": PHP,
        "prepare": "composer -q install",
        "check": "php t.php",
        "broken": ("src/A.php", "return 1", "return 2"),
        "needs": COMPOSER,
    }
    return SetUp(name=name, **{**row, **fields})


C = {
    ".gitignore": "build/\nconfig.mk\nt\n",
    "a.c": "int f() { return 1; }\n",
    "t.c": "int f();\nint main() { return f() != 1; }\n",
}


def make(name: str, makefile: str, **fields: Any) -> SetUp:
    row: dict[str, Any] = {
        "files": {**C, "Makefile": makefile},
        "check": "make -s test",
        "broken": ("a.c", "return 1", "return 2"),
        "needs": MAKE,
    }
    return SetUp(name=name, **{**row, **fields})


SERVER = """import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("../socket")
server.listen()
print("ready", flush=True)
while True:
    asked, _ = server.accept()
    folder = asked.recv(4096).decode() or os.getcwd()
    asked.sendall(open(f"{folder}/app.py", "rb").read())
    asked.close()
"""
ASKS = (
    'python3 -c \'import os, socket; s = socket.socket(socket.AF_UNIX); s.connect("{outside}/socket"); '
    's.sendall({folder}); s.shutdown(socket.SHUT_WR); assert b"= 1" in s.recv(99)\''
)
APP = {"files": {"app.py": "VALUE = 1\n", ".gitignore": "x\n"}, "broken": ("app.py", "= 1", "= 2"), "server": SERVER}

OTHERS = (
    go("go"),
    go("go, replace => ../lib", "../lib", own_path="cannot start"),
    go("go, replace => a path in the tree", "{main}/lib", broken=("lib/l.go", "V = 1", "V = 2"), own_path="named"),
    go(
        "go, GOWORK in the environment",
        files={
            **GO_IGNORED,
            **beneath("lib", {**GO_LIB, "go.mod": "module ex.org/lib\n\ngo 1.19\n"}),
            "app/go.mod": "module ex.org/app\n\ngo 1.19\n",
            "app/a_test.go": 'package app\n\nimport (\n\t"ex.org/lib"\n\t"testing"\n)\n\n'
            "func TestF(t *testing.T) {\n\tif lib.V != 1 {\n\t\tt.Fatal()\n\t}\n}\n",
            "../go.work": "go 1.19\n\nuse ./main/app\n\nuse ./main/lib\n",
        },
        check="cd app && go test ex.org/app",
        broken=("lib/l.go", "V = 1", "V = 2"),
        env={"GOWORK": "{outside}/go.work", "GOPROXY": "off"},
        own_path="named",
    ),
    cargo("cargo"),
    cargo(
        "cargo, a shared target folder",
        "CARGO_TARGET_DIR=../t cargo -q test --offline > /dev/null",
        env={"CARGO_TARGET_DIR": "{outside}/t"},
    ),
    cargo(
        "cargo, path = ../lib",
        "",
        files={
            **CRATE,
            "../lib/Cargo.toml": '[package]\nname = "lib"\nversion = "0.1.0"\n',
            "../lib/src/lib.rs": "pub const V: i32 = 1;\n",
            "Cargo.toml": f'{CRATE["Cargo.toml"]}[dependencies]\nlib = {{ path = "../lib" }}\n',
        },
        own_path="cannot start",
    ),
    ruby(
        "bundler", prepare="bundle config set --local path vendor/bundle > /dev/null && bundle install --local --quiet"
    ),
    ruby("ruby -Ilib", files=GEM, check="ruby -Ilib t.rb", needs=BUNDLER[:1]),
    ruby(
        "bundler, BUNDLE_GEMFILE absolute",
        prepare="bundle install --local --quiet",
        env={"BUNDLE_GEMFILE": "{main}/Gemfile"},
    ),
    php("composer"),
    php("composer, --setup ln -s", setup="ln -s {main}/vendor vendor", own_path="named"),
    make(
        "make, an absolute path in the ignored config.mk",
        "include config.mk\ntest:\n\tmkdir -p build && cc -o build/t $(SRC)/a.c $(SRC)/t.c && build/t\n",
        prepare='echo "SRC=$PWD" > config.mk',
        in_place="cannot start",
        own_path="cannot start",
    ),
    make(
        "make, an absolute path in the Makefile",
        "SRC = {main}\ntest:\n\tmkdir -p build && cc -o build/t $(SRC)/a.c $(SRC)/t.c && build/t\n",
        own_path="named",
    ),
    make(
        "make, an incremental build",
        "test: build/t\n\tbuild/t\nbuild/t: a.c t.c\n\tmkdir -p build; cc -o $@ a.c t.c\n",
        prepare="make -s test",
    ),
    make(
        "make, a build folder outside",
        "",
        files={**C, "../b/Makefile": "test:\n\tcc -o t {main}/a.c {main}/t.c && ./t\n"},
        check="make -s -C {outside}/b test",
        own_path="named",
    ),
    SetUp(
        name="a server that was started in the tree",
        check=ASKS.replace("{folder}", 'b""'),
        in_place="named",
        own_path="named",
        **APP,
    ),
    # As `docker run -v "$PWD:/app"`: the server sees the path of the copy as it is outside of the namespace.
    SetUp(
        name="a container that mounts the folder",
        check=ASKS.replace("{folder}", "os.getcwd().encode()"),
        in_place="named",
        stand_in="a server that reads the folder it is given",
        **APP,
    ),
)
