//! The OCI runtime specification of a sandbox's container, for runc.

use std::path::Path;

use russet_containerd::{Any, ContainerRuntime, Process, RuncOptions};
use serde_json::{Value, json};

use super::seccomp;
use crate::{Config, SandboxId};

/// The parts of a sandbox that exist before its container does.
pub(super) struct SandboxPaths<'a> {
    /// None with host network.
    pub(super) netns: Option<&'a Path>,
    /// None with the node's IPC.
    pub(super) shm: Option<&'a Path>,
    /// The directory of `resolv.conf`, `hosts` and `hostname`.
    pub(super) files: &'a Path,
}

const VERSION: &str = "1.0.2";
const TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
const RUNC: &str = "io.containerd.runc.v2";
const RUNC_OPTIONS: &str = "containerd.runc.v1.Options";
/// The parent control group, if kubelet names none.
const CGROUP_PARENT: &str = "/russet";
/// The suffix of a systemd slice.
const SLICE: &str = ".slice";
/// The paths that every runtime hides from containers.
const MASKED: [&str; 7] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The container of a sandbox: it has no capability, a read-only file system, and the sandbox's
/// namespaces. `sysctls` are paths below `/proc/sys`, of the IPC namespace.
pub(super) fn spec(
    id: &SandboxId,
    config: &Config,
    process: &Process,
    places: &SandboxPaths<'_>,
    sysctls: &[(String, String)],
) -> Any {
    let mut spec = json!({
        "ociVersion": VERSION,
        "process": {
            "terminal": false, "args": process.args, "env": process.env, "cwd": process.cwd,
            "user": {"uid": process.uid, "gid": process.gid}, "noNewPrivileges": true,
            "capabilities": {"bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": []},
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": mounts(places),
        "linux": {
            "namespaces": namespaces(config, places),
            "cgroupsPath": cgroup(id, config),
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "sysctl": sysctls.iter().map(|(path, value)| (path.replace('/', "."), json!(value))).collect::<serde_json::Map<_, _>>(),
            "maskedPaths": MASKED, "readonlyPaths": READ_ONLY,
        },
    });
    let hostname = Some(&config.hostname).filter(|name| !config.host_network && !name.is_empty());
    let members =
        [("", "hostname", hostname.map(|name| json!(name))), ("/linux", "seccomp", seccomp::profile())];
    // What is absent has no member, because not every runtime takes null for that.
    for (at, name, value) in members {
        let object = spec.pointer_mut(at).and_then(Value::as_object_mut);
        if let (Some(object), Some(value)) = (object, value) {
            object.insert(name.to_owned(), value);
        }
    }
    Any { type_url: TYPE.to_owned(), value: spec.to_string().into_bytes() }
}

/// The runtime's options: whether systemd makes the control group.
pub(super) fn runtime(config: &Config) -> ContainerRuntime {
    let options = config.cgroup_parent.ends_with(SLICE).then(|| Any {
        type_url: RUNC_OPTIONS.to_owned(),
        value: prost::Message::encode_to_vec(&RuncOptions { systemd_cgroup: true }),
    });
    ContainerRuntime { name: RUNC.to_owned(), options }
}

/// A path, or slice, prefix and name for systemd.
fn cgroup(id: &SandboxId, config: &Config) -> String {
    match config.cgroup_parent.as_str() {
        "" => format!("{CGROUP_PARENT}/{id}"),
        slice if slice.ends_with(SLICE) => {
            format!("{}:russet:{id}", slice.rsplit('/').next().unwrap_or_default())
        }
        // From the root: runc would place it below its own group otherwise.
        parent => match parent.trim_matches('/') {
            "" => format!("/{id}"),
            parent => format!("/{parent}/{id}"),
        },
    }
}

fn namespaces(config: &Config, places: &SandboxPaths<'_>) -> Vec<Value> {
    let mut namespaces = vec![json!({"type": "mount"})];
    let own = [("pid", !config.host_pid), ("ipc", !config.host_ipc), ("uts", !config.host_network)];
    namespaces.extend(own.iter().filter(|(_, own)| *own).map(|(kind, _)| json!({"type": kind})));
    namespaces.extend(places.netns.map(|path| json!({"type": "network", "path": path})));
    namespaces
}

fn mounts(places: &SandboxPaths<'_>) -> Vec<Value> {
    let mount = |to: &str, kind: &str, options: &[&str]| json!({"destination": to, "type": kind, "source": kind, "options": options});
    let bind = |to: &str, from: &Path, options: &[&str]| json!({"destination": to, "type": "bind", "source": from, "options": options});
    let mut mounts = vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        bind(
            "/dev/shm",
            places.shm.unwrap_or(Path::new("/dev/shm")),
            &["rbind", "nosuid", "noexec", "nodev"],
        ),
    ];
    for name in ["resolv.conf", "hosts", "hostname"] {
        let options = ["rbind", "ro", "nosuid", "noexec", "nodev"];
        mounts.push(bind(&format!("/etc/{name}"), &places.files.join(name), &options));
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &Config) -> Value {
        let id = "a".repeat(64).parse().unwrap();
        let process =
            Process { args: vec!["/pause".into()], env: vec![], cwd: "/".into(), uid: 65535, gid: 65535 };
        let (netns, shm) = (Path::new("/run/n"), Path::new("/run/s"));
        let places = SandboxPaths {
            netns: (!config.host_network).then_some(netns),
            shm: (!config.host_ipc).then_some(shm),
            files: Path::new("/run/f"),
        };
        let sysctls = [("kernel/shm_rmid_forced".to_owned(), "1".to_owned())];
        serde_json::from_slice(&spec(&id, config, &process, &places, &sysctls).value).unwrap()
    }

    fn kinds(spec: &Value) -> Vec<&str> {
        spec["linux"]["namespaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["type"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn a_sandboxs_container_has_its_namespaces_and_nothing_of_the_nodes() {
        // cni-runtime.md section 3.3: namespaces first, then the process that holds them
        let spec = of(&Config { hostname: "web".into(), ..Config::default() });
        assert_eq!(kinds(&spec), ["mount", "pid", "ipc", "uts", "network"]);
        assert_eq!(spec["linux"]["namespaces"][4]["path"], "/run/n");
        assert_eq!((&spec["hostname"], &spec["root"]["readonly"]), (&json!("web"), &json!(true)));
        assert_eq!(spec["linux"]["sysctl"], json!({"kernel.shm_rmid_forced": "1"}));
        assert_eq!(spec["mounts"][5]["source"], "/run/s");
        let shared = of(&Config {
            host_network: true,
            host_ipc: true,
            host_pid: true,
            hostname: "web".into(),
            ..Config::default()
        });
        assert_eq!((kinds(&shared), &shared["hostname"]), (vec!["mount"], &Value::Null));
        assert_eq!(shared["mounts"][5]["source"], "/dev/shm");
    }

    #[test]
    fn a_control_group_is_where_kubelet_wants_it() {
        // cni-runtime.md section 3.1: cgroup parent
        let id = "a".repeat(64);
        for (parent, path, systemd) in [
            ("", format!("/russet/{id}"), false),
            ("/kubepods/pod1", format!("/kubepods/pod1/{id}"), false),
            ("kubepods/pod1/", format!("/kubepods/pod1/{id}"), false),
            ("/", format!("/{id}"), false),
            ("kubepods-pod1.slice", format!("kubepods-pod1.slice:russet:{id}"), true),
            ("/kubepods.slice/kubepods-pod1.slice", format!("kubepods-pod1.slice:russet:{id}"), true),
        ] {
            let config = Config { cgroup_parent: parent.into(), ..Config::default() };
            assert_eq!(of(&config)["linux"]["cgroupsPath"], path);
            // Field 9, a varint, is 1.
            assert_eq!(runtime(&config).options.map(|it| it.value), systemd.then(|| vec![0x48, 1]));
        }
    }
}
