"""The sessions that build, check and show coatcheck; plain ``nox`` runs the gate.

Sessions say what is run and in which environment. What a tool checks is said in pyproject.toml.
"""

import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml("pyproject.toml")
PACKAGES = tuple(sorted(f"packages/{path.name}" for path in (ROOT / "packages").iterdir() if path.is_dir()))
EXAMPLE = "examples/third-party-provider"
CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"
SUPPORTED = ("3.11", "3.12", "3.13")
PYTHONS = SUPPORTED if CURRENT in SUPPORTED else (*SUPPORTED, CURRENT)

#: What benchmarks/peers.py runs beside us.
PEERS = (
    "aiohttp>=3.11",
    "arq>=0.26",
    "celery>=5.5",
    "kombu[redis]>=5.5",
    "requests>=2.32",
    "uvloop>=0.21",
)

nox.options.sessions = ["lint", "typing", "docs", "wheels", f"tests-{CURRENT}"]


def install(session: nox.Session, *groups: str, engine: bool = False) -> None:
    """Install all packages in place and the given dependency groups; ``engine`` adds the OCR engine."""
    session.install(
        *(requirement for group in groups for requirement in nox.project.dependency_groups(PYPROJECT, group)),
        *("-e", "packages/core"),
        *("-e", "packages/provider-ocr[local]" if engine else "packages/provider-ocr"),
        *("-e", "packages/provider-video"),
        *("-e", "packages/store-redis"),
    )


@nox.session
def demo(session: nox.Session) -> None:
    """Turn the sample documents into text on this machine; with --video, watch video tasks at sandboxes."""
    arguments = [argument for argument in session.posargs if argument != "--video"]
    if "--video" in session.posargs:
        session.install("-e", "packages/core", "-e", "packages/provider-video")
        session.run("coatcheck", "demo-video", *arguments)
        return
    session.install("-e", "packages/core", "-e", "packages/provider-ocr[local]")
    session.run("coatcheck", "demo", *arguments)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the test suite; arguments go to pytest."""
    install(session, "tests", engine=True)
    session.run("pytest", *session.posargs)


@nox.session
def vendors(session: nox.Session) -> None:
    """Run the handlers against real servers of vendors, which are installed and run on this machine."""
    install(session, "tests", "vendors")
    session.run("pytest", "-m", "vendors", "tests/vendors", *session.posargs)


@nox.session
def wire(session: nox.Session) -> None:
    """Compare the calls of the handlers with those of the vendors' own clients."""
    install(session, "tests", "wire")
    # Its client alone: the package asks for a whole engine.
    session.install("--no-deps", "paddleocr>=3.7,<4")
    session.run("pytest", "-m", "wire", "tests/wire", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the test suite and report what it did not reach."""
    install(session, "tests", engine=True)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine", "-q")
    session.run("coverage", "report")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, layers and spelling."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("codespell")


@nox.session
def typing(session: nox.Session) -> None:
    """Check types."""
    install(session, "typing")
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    if not (ROOT / "docs" / "conf.py").exists():
        session.skip("docs/conf.py does not exist")
    install(session, "docs")
    session.run("sphinx-build", "-nWq", "--keep-going", "docs", "docs/_build/html", *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every package, install the wheels outside the workspace and use them."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "release"))
    tmp = Path(session.create_tmp()).resolve()
    dist = tmp / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for folder in (*PACKAGES, EXAMPLE):
        # Each wheel is made from the sdist, so that a file missing there is missed here.
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), folder, silent=True)
    built = [f"{path.name.split('-')[0]} @ {path.as_uri()}" for path in sorted(dist.glob("*.whl"))]
    built = [wheel.replace("coatcheck @", "coatcheck[testing] @") for wheel in built]
    session.install("--force-reinstall", *built)
    with session.chdir(tmp):
        session.run("python", "-I", "-c", "import coatcheck, coatcheck_ocr, coatcheck_video, coatcheck_redis")
        # The scripts are files beside the code.
        session.run("python", "-I", "-c", "from coatcheck_redis.scripts import script; script('claim')")
        session.run("coatcheck", "plugins")
    # The example meets the exported contracts with nothing but what a stranger can install.
    session.run("pytest", "-c", f"{EXAMPLE}/pyproject.toml", EXAMPLE)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the scripts in benchmarks/ that are named, or all of them; nothing is asserted."""
    install(session, "tests", engine=True)
    # arq reads replies in C, so we may, too.
    session.install("-e", "packages/store-redis[hiredis]")
    names = [argument for argument in session.posargs if not argument.startswith("-")]
    options = [argument for argument in session.posargs if argument.startswith("-")]
    scripts = [Path("benchmarks", f"{name}.py") for name in names] or sorted(
        Path("benchmarks").glob("[!_]*.py")
    )
    environment = {"BENCH_PEERS_PYTHON": peers(session)} if "peers" in {path.stem for path in scripts} else {}
    for script in scripts:
        session.run("python", str(script), *options, env=environment)


def peers(session: nox.Session) -> str:
    """Install what ``benchmarks/peers.py`` compares us with, and return the Python that has it.

    It is no dependency group, because arq wants an older redis-py than the store: they cannot share an
    environment, nor a lock file.
    """
    folder = Path(session.create_tmp()).resolve() / "peers"
    python = str(folder / "bin" / "python")
    if not folder.exists():
        session.run("python", "-m", "venv", str(folder))
    session.run(python, "-m", "pip", "install", "--quiet", *PEERS, external=True)
    return python
