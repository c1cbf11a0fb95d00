"""How many cores an engine may use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path


def physical_cores(root: Path = Path("/")) -> int:
    """Return how many physical cores this process may use, at least 1: those of its affinity mask, two
    threads of one core counted once, and no more than the quota of its control group.

    Args:
        root: where /sys and /proc are.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_core(root, cpu) for cpu in cpus}
    # Rounded down: a thread more than the quota would stand still for a part of each period, and the others
    # would wait for it.
    return max(1, int(min(len(cores), _quota(root))))


def _core(root: Path, cpu: int) -> str:
    """Return what the threads of one core have in common."""
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        return siblings.read_text().strip()
    except OSError:
        # A core of its own, where nobody says otherwise.
        return str(cpu)


def _quota(root: Path) -> float:
    """Return how many processors the control group allows, by cgroups(7); infinity where it does not say."""
    quotas = [math.inf]
    for path in _groups(root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if path.name == "cpu.max":
                quota, period = path.read_text().split()
            else:
                quota = path.read_text()
                period = path.with_name("cpu.cfs_period_us").read_text()
            if float(quota) > 0:
                quotas.append(float(quota) / float(period))
    return min(quotas)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the files that may hold a quota, of both versions: of the group of this process and all above."""
    groups = {""}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                path = Path(name.lstrip("/"))
                groups.update(str(group) for group in (path, *path.parents))
    for group in sorted(groups):
        yield root / "sys/fs/cgroup" / group / "cpu.max"
        for mount in ("cpu", "cpu,cpuacct"):
            yield root / "sys/fs/cgroup" / mount / group / "cpu.cfs_quota_us"
