"""Fetching what packages carry: checked, only once, and with a clear word when it cannot be had. No network: wheels made here."""

import hashlib
import subprocess
import sys
import zipfile

import pytest
from stoker.engine.errors import StokerError, Unreachable
from stoker.runners import packages
from stoker.runners.packages import Package, fetch


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _wheel(directory, extra=()):
    directory.mkdir(exist_ok=True)
    path = directory / "ashes-1.0-py3-none-any.whl"
    files = {
        "ashes/data/one.txt": "one",
        "ashes/data/two.txt": "two",
        "ashes/code.py": "raise SystemExit('code of a package must not run')",
        "ashes-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ashes\nVersion: 1.0\n",
        "ashes-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **dict(extra),
    }
    record = "".join(f"{name},,\n" for name in [*files, "ashes-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, "ashes-1.0.dist-info/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip finds only the wheel in a directory; the answer is the package as Stoker would know it."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    wheel = _wheel(tmp_path / "wheels")
    return Package("ashes", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), ("ashes/data/*.txt",), "ashes")


def test_only_the_wanted_files_are_kept(cache, index):
    folder = fetch(index)
    assert folder == cache / "packages" / "ashes-1.0"
    kept = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert kept == ["ashes/data/one.txt", "ashes/data/two.txt", "stoker-manifest.json"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["ashes-1.0", "ashes-1.0.lock"]


def test_it_is_fetched_once(cache, index, monkeypatch):
    fetch(index)
    monkeypatch.setattr(packages, "_download", None)
    assert (fetch(index) / "ashes/data/one.txt").read_text() == "one"


@pytest.mark.parametrize("damage", ["lost", "cut"])
def test_a_damaged_copy_is_fetched_again(cache, index, damage):
    file = fetch(index) / "ashes/data/two.txt"
    file.unlink() if damage == "lost" else file.write_text("t")
    assert (fetch(index) / "ashes/data/two.txt").read_text() == "two"


def test_another_wheel_than_the_known_one_is_refused(cache, index, tmp_path):
    _wheel(tmp_path / "wheels", {"ashes/data/three.txt": "three"})
    with pytest.raises(StokerError, match=r"gave another ashes 1\.0 than Stoker knows: sha256 .* it is not used"):
        fetch(index)
    assert not (cache / "packages" / "ashes-1.0").exists()


def test_a_file_outside_the_directory_is_refused(cache, index, tmp_path):
    wheel = _wheel(tmp_path / "wheels", {"ashes/data/../../../evil.txt": "evil"})
    package = Package("ashes", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), ("ashes/data/*.txt",), "ashes")
    with pytest.raises(StokerError, match="holds a file outside its directory"):
        fetch(package)


def test_no_index_says_what_to_do(cache, index, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(Unreachable) as caught:
        fetch(index)
    message = str(caught.value)
    assert message.startswith("cannot fetch ashes 1.0 (ashes) from pip's package index: Could not find a version")
    assert "PIP_NO_INDEX=1 and PIP_FIND_LINKS" in message
    assert "\n" not in message


def test_a_cache_that_cannot_be_written_is_named(index, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "file"))
    with pytest.raises(StokerError, match=r"cannot keep ashes 1\.0 in .*: Not a directory; set STOKER_CACHE"):
        fetch(index)


def test_several_processes_at_once_fetch_it_once(cache, index, tmp_path):
    code = "import sys\nfrom stoker.runners import packages\n" + (
        "download = packages._download\n"
        "def counted(*arguments):\n    open(sys.argv[2], 'a').write('x')\n    return download(*arguments)\n"
        "packages._download = counted\n"
        "name, version, sha256, members, what = eval(sys.argv[1])\n"
        "print((packages.fetch(packages.Package(name, version, sha256, members, what)) / 'ashes/data/one.txt').read_text())\n"
    )
    known = repr((index.name, index.version, index.sha256, index.members, index.what))
    command = [sys.executable, "-c", code, known, str(tmp_path / "downloads")]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0] for process in several] == ["one\n"] * 4
    assert (tmp_path / "downloads").read_text() == "x"


def test_the_command_tells_its_progress(cache, index, monkeypatch, capsys):
    monkeypatch.setattr(packages, "PACKAGES", (index,))
    assert packages.main([]) == 0
    assert capsys.readouterr().out.startswith("[1/1] ashes 1.0: ashes ... 0.0 MB, ")
    assert packages.main(["ashse"]) == 3
    assert "no recipe needs a package 'ashse' (did you mean 'ashes'?)" in capsys.readouterr().err


@pytest.mark.parametrize("package", packages.PACKAGES, ids=str)
def test_the_packages_of_the_recipes_are_pinned(package):
    assert len(package.sha256) == 64
    assert int(package.sha256, 16)
    assert package.members


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("STOKER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert packages.cache_dir() == tmp_path / "stoker"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert packages.cache_dir() == tmp_path / ".cache" / "stoker"
