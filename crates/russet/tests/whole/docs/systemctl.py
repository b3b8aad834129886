#!/usr/bin/python3
"""The part of systemd that pages and packages need: starts the programs of units, waits for READY=1, and ends them."""

import os
import select
import signal
import socket
import subprocess
import sys

UNITS = "/etc/systemd/system"
# Those of packages, which an administrator's come before.
PACKAGED_UNITS = "/usr/lib/systemd/system"
STATE = "/run/units"


def path_of(unit):
    """The file of a unit, or of its template."""
    name, at, _ = unit.removesuffix(".service").partition("@")
    paths = [f"{directory}/{name}{at}.service" for directory in (UNITS, PACKAGED_UNITS)]
    return next((path for path in paths if os.path.exists(path)), None)


def read(unit):
    """The settings of a unit, each a list of values; None if there is no such unit."""
    path, instance = path_of(unit), unit.removesuffix(".service").partition("@")[2]
    if path is None:
        return None
    settings = {}
    for line in open(path):
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith("#"):
            settings.setdefault(key, []).append(value.replace("%i", instance))
    return settings


def enabled_with(unit):
    """The enabled units that are wanted by this one."""
    directory = f"{UNITS}/{unit}.wants"
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def pid_file(unit):
    return f"{STATE}/{unit}.pid"


def start(unit):
    if os.path.exists(pid_file(unit)):
        return
    settings = read(unit)
    command, kind = settings["ExecStart"][0].split(), settings.get("Type", ["simple"])[0]
    variables = dict(os.environ)
    variables.update(setting.split("=", 1) for setting in settings.get("Environment", []))
    if kind == "oneshot":
        subprocess.run(command, env=variables, check=True, stdin=subprocess.DEVNULL)
    else:
        spawn(unit, command, variables, waits=kind == "notify")
    for wanted in enabled_with(unit):
        start(wanted)


def spawn(unit, command, variables, waits):
    address = f"{unit}-{os.getpid()}"
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(f"\0{address}")
    inbox.settimeout(60)
    if waits:
        variables["NOTIFY_SOCKET"] = f"@{address}"
    log = open(f"{STATE}/{unit}.log", "a")
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    process = subprocess.Popen(command, env=variables, start_new_session=True, **streams)
    open(pid_file(unit), "w").write(str(process.pid))
    while waits and b"READY=1" not in inbox.recv(4096):
        pass


def stop(unit):
    for wanted in enabled_with(unit):
        stop(wanted)
    if os.path.exists(pid_file(unit)):
        process = os.pidfd_open(int(open(pid_file(unit)).read()))
        signal.pidfd_send_signal(process, signal.SIGTERM)
        select.select([process], [], [])
        os.remove(pid_file(unit))
    for command in read(unit).get("ExecStop", []):
        subprocess.run(command.split(), check=True, stdin=subprocess.DEVNULL)


def enable(unit):
    for target in read(unit)["WantedBy"]:
        os.makedirs(f"{UNITS}/{target}.wants", exist_ok=True)
        link = f"{UNITS}/{target}.wants/{unit}"
        if not os.path.lexists(link):
            os.symlink(path_of(unit), link)


def disable(unit):
    for target in read(unit)["WantedBy"]:
        link = f"{UNITS}/{target}.wants/{unit}"
        if os.path.lexists(link):
            os.remove(link)


def main():
    os.makedirs(STATE, exist_ok=True)
    verb, *words = sorted(sys.argv[1:], key=lambda word: word.startswith("-"))
    units = [word if word.endswith(".service") else f"{word}.service" for word in words if word[0] != "-"]
    for unit in units:
        if read(unit) is None:
            sys.exit(f"Unit {unit} not found.")
    for unit in units:
        runs = os.path.exists(pid_file(unit))
        if verb in ("stop", "restart") or verb == "disable" and "--now" in words or verb == "try-restart" and runs:
            stop(unit)
        if verb == "enable":
            enable(unit)
        if verb == "disable":
            disable(unit)
        if verb in ("start", "restart") or verb == "enable" and "--now" in words or verb == "try-restart" and runs:
            start(unit)


main()
