"""How quickly `POST /v1/speech/jobs` answers while synthesis keeps every core busy.

Starts a fleet of its own on free ports, keeps two engines busy with long texts of the bundled voice, and sends
short jobs by an open loop: each client sends at its own fixed times, whether or
not the last answer has come, so a slow server cannot slow the clients and hide behind them. The saturated
figure (each client sends again as soon as it is answered) is printed beside it: it measures the queue.

    python benchmarks/submit.py [--clients 50] [--rate 4] [--seconds 60]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.journeys.fleet import Fleet, fleet

BODY = json.dumps({"input": "A short line to be spoken.", "expires_in": 3600}).encode()
BOOK = "The harbour was quiet before dawn, and the fishermen carried their nets along the pier. " * 2000


def client(
    running: Fleet, *, times: list[float] | None, until: float, took: list[float], wrong: list[int]
) -> None:
    """Send jobs at `times`, or one after another when there are none, until `until`."""
    host, port = running.environ["VOXFLEET_API_BIND"].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    headers = {"Authorization": f"Bearer {running.key}", "Content-Type": "application/json"}
    while time.perf_counter() < until:
        if times is not None:
            if not times:
                return
            due = times.pop(0)
            time.sleep(max(0.0, due - time.perf_counter()))
        else:
            due = time.perf_counter()
        connection.request("POST", "/v1/speech/jobs", BODY, headers)
        response = connection.getresponse()
        response.read()
        # From when it should have been sent, not from when the client got around to it.
        took.append(time.perf_counter() - due)
        if response.status != 202:
            wrong.append(response.status)
    connection.close()


def burst(
    running: Fleet, *, clients: int, rate: float | None, seconds: float
) -> tuple[list[float], list[int], float]:
    took: list[float] = []
    wrong: list[int] = []
    begin = time.perf_counter() + 0.5
    threads = []
    for number in range(clients):
        times = None
        if rate is not None:
            offset = number / clients / rate
            times = [begin + offset + beat / rate for beat in range(int(seconds * rate))]
        thread = threading.Thread(
            target=client,
            args=(running,),
            kwargs={"times": times, "until": begin + seconds, "took": took, "wrong": wrong},
        )
        threads.append(thread)
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(took), wrong, time.perf_counter() - begin


def line(name: str, took: list[float], wrong: list[int], seconds: float) -> str:
    at = [1000 * took[min(len(took) - 1, int(len(took) * q))] for q in (0.5, 0.95, 0.99, 1.0)]
    return (
        f"{name:<34} {len(took):>7} {len(took) / seconds:>8.1f} "
        f"{at[0]:>8.1f} {at[1]:>8.1f} {at[2]:>8.1f} {at[3]:>8.1f} {len(wrong):>7}"
    )


def cpu_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second of each client")
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder) / "data") as running:
        # A second engine, so that synthesis keeps both cores busy.
        second = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "worker", "synth", "--model", "hibari"],
            env=running.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for _ in range(40):
                running.submit(BOOK)
            time.sleep(3)
            engines = running.pids("speech.child")
            before = cpu_seconds(engines)
            took, wrong, seconds = burst(
                running, clients=chosen.clients, rate=chosen.rate, seconds=chosen.seconds
            )
            busy = (cpu_seconds(engines) - before) / seconds
            print(f"{len(engines)} engines, {busy:.2f} cores busy with synthesis of {os.cpu_count()}")
            print(
                f"{'':<34} {'jobs':>7} {'req/s':>8} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'max ms':>8} {'not 202':>7}"
            )
            print(line(f"open loop, {chosen.clients} x {chosen.rate:g}/s", took, wrong, seconds))
            took, wrong, seconds = burst(
                running, clients=chosen.clients, rate=None, seconds=chosen.seconds / 4
            )
            print(line(f"closed loop, {chosen.clients} (saturated)", took, wrong, seconds))
        finally:
            second.terminate()
            second.wait(timeout=40)


if __name__ == "__main__":
    main()
