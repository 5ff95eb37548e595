"""The files of a worktree that git doesn't commit: they exist nowhere else, and a clean copy doesn't have them."""

import os

from ralph.git.client import Git
from ralph.git.index import CACHES, LIBRARIES

# Folders that a tool fills again; a check may need the dependencies.
DEPENDENCIES = LIBRARIES | frozenset({
    "env", ".pnpm-store", ".yarn", "vendor", ".bundle", "bower_components", "deps", "Pods", ".direnv", "elm-stuff",
})  # fmt: skip
BUILDS = frozenset({
    "build", "_build", "dist", "target", "obj", ".next", ".nuxt", ".svelte-kit", ".turbo", ".parcel-cache", ".gradle",
    ".cache", ".eggs", "htmlcov", "coverage", ".nyc_output", "CMakeFiles", ".dart_tool",
})  # fmt: skip
MADE_AGAIN = CACHES | DEPENDENCIES | BUILDS
MADE_AGAIN_FILES = (
    *("*.pyc", "*.pyo", "*.o", "*.class", "*.egg-info/**", "*.tsbuildinfo", "*.swp", "*~"),
    *(".coverage", ".coverage.*", "coverage.xml", ".DS_Store", ".eslintcache"),
)


def untracked_files(git: Git) -> frozenset[bytes]:
    """Return the untracked files of a worktree, ignored or not, without ralph's own and without those that a tool makes
    again, such as caches and what a build or a package manager makes."""
    left_out = [*(f"{folder}/**" for folder in (*sorted(MADE_AGAIN), ".ralph")), *MADE_AGAIN_FILES]
    patterns = [f":(top,exclude,glob)**/{pattern}" for pattern in left_out]
    out = git.run("ls-files", "-z", "--others", "--", ":(top)", *patterns)
    return frozenset(out.split(b"\0")) - {b""}


def dependency_folders(git: Git) -> frozenset[bytes]:
    """Return the ignored folders with dependencies, such as node_modules."""
    args = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory", "--", ":(top)")
    folders = (path[:-1] for path in git.run(*args).split(b"\0") if path.endswith(b"/"))
    return frozenset(path for path in folders if os.fsdecode(os.path.basename(path)) in DEPENDENCIES)
