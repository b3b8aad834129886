"""Executes a program under the restrictions of a systemd unit, on a machine where systemd does not run: under_unit.py UNIT PROGRAM [ARGUMENT...].

Bounding set, no_new_privs, umask, core limit, and what systemd's seccomp filters do for SystemCallFilter=, RestrictAddressFamilies=, RestrictNamespaces=,
MemoryDenyWriteExecute=, RestrictRealtime=, RestrictSUIDSGID=, LockPersonality= and ProtectClock= (systemd.exec(5)). DevicePolicy= and KeyringMode= are left out.
"""
import ctypes, errno, os, resource, subprocess, sys

CAPABILITIES = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST
NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME
SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF
CHECKPOINT_RESTORE""".split()
NAMESPACES = {"cgroup": 0x02000000, "mnt": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
ALLOW, NE, EQ, GE, MASKED = 0x7FFF0000, 1, 4, 5, 7
PROT_WRITE, PROT_EXEC, SHM_EXEC, FAMILY_MAX = 2, 4, 0o100000, 64


class Comparison(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


libc = ctypes.CDLL(None, use_errno=True)
library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
library.seccomp_init.restype = ctypes.c_void_p
library.seccomp_load.argtypes = [ctypes.c_void_p]
library.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Comparison)]


def refusal(error):
    return 0x00050000 | error


class Filter:
    def __init__(self, default):
        self.context = library.seccomp_init(ctypes.c_uint32(default))

    def add(self, action, name, *comparisons):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # another architecture's
            return
        array = (Comparison * max(len(comparisons), 1))(*[Comparison(*it) for it in comparisons])
        failed = library.seccomp_rule_add_array(self.context, action, number, len(comparisons), array)
        if failed:
            sys.exit(f"seccomp rule for {name}: {os.strerror(-failed)}")

    def load(self):
        failed = library.seccomp_load(self.context)
        if failed:
            sys.exit(f"load a seccomp filter: {os.strerror(-failed)}")


def settings(path):
    found = {}
    for line in open(path):
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def members(name):
    """The system calls of a set, as this machine's systemd knows them."""
    if not name.startswith("@"):
        return {name}
    printed = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True).stdout
    lines = [line.strip() for line in printed.splitlines()[1:]]
    return set().union(*[members(line) for line in lines if line and not line.startswith("#")])


def allowed_calls(lists):
    allowed = members("@default")
    for text in lists:
        calls = set().union(*[members(name) for name in text.lstrip("~").split()])
        allowed = allowed - calls if text.startswith("~") else allowed | calls
    return allowed


def restrictions(unit):
    def is_on(key):
        return unit.get(key, ["no"])[-1] == "yes"

    filters, one = [], Filter(ALLOW)
    denied = refusal(errno.EPERM)
    allowed = {FAMILIES[name] for name in " ".join(unit["RestrictAddressFamilies"]).split()}
    for family in set(range(FAMILY_MAX)) - allowed:
        one.add(refusal(errno.EAFNOSUPPORT), "socket", (0, EQ, family, 0))
    one.add(refusal(errno.EAFNOSUPPORT), "socket", (0, GE, FAMILY_MAX, 0))
    kept = " ".join(unit["RestrictNamespaces"]).split()
    for flag in [flag for name, flag in NAMESPACES.items() if name not in kept]:
        for name, argument in [("unshare", 0), ("clone", 0), ("setns", 1)]:
            one.add(denied, name, (argument, MASKED, flag, flag))
    one.add(denied, "setns", (1, EQ, 0, 0))
    one.add(refusal(errno.ENOSYS), "clone3")
    if is_on("MemoryDenyWriteExecute"):
        one.add(denied, "mmap", (2, MASKED, PROT_WRITE | PROT_EXEC, PROT_WRITE | PROT_EXEC))
        for name in ["mprotect", "pkey_mprotect"]:
            one.add(denied, name, (2, MASKED, PROT_EXEC, PROT_EXEC))
        one.add(denied, "shmat", (2, MASKED, SHM_EXEC, SHM_EXEC))
    if is_on("RestrictRealtime"):
        one.add(denied, "sched_setscheduler", (1, GE, 1, 0))
    if is_on("RestrictSUIDSGID"):
        one.add(refusal(errno.ENOSYS), "openat2")
        for name, argument in [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1), ("mkdirat", 2), ("mknod", 1), ("mknodat", 2)]:
            for bit in [0o4000, 0o2000]:
                one.add(denied, name, (argument, MASKED, bit, bit))
    if is_on("LockPersonality"):
        one.add(denied, "personality", (0, NE, 0, 0))
    if is_on("ProtectClock"):
        for name in members("@clock"):
            one.add(denied, name)
    filters.append(one)
    error = getattr(errno, unit["SystemCallErrorNumber"][-1])
    calls = Filter(refusal(error))
    for name in allowed_calls(unit["SystemCallFilter"]):
        calls.add(ALLOW, name)
    filters.append(calls)  # the last: it refuses seccomp(2) itself
    return filters


def main():
    unit = settings(sys.argv[1])
    filters = restrictions(unit)
    kept = {name.removeprefix("CAP_") for name in " ".join(unit["CapabilityBoundingSet"]).split()}
    for number, name in enumerate(CAPABILITIES):
        if name not in kept and libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            sys.exit(f"drop CAP_{name}: {os.strerror(ctypes.get_errno())}")
    os.umask(int(unit["UMask"][-1], 8))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        sys.exit("no_new_privs")
    for one in filters:
        one.load()
    os.execvp(sys.argv[2], sys.argv[2:])


main()
