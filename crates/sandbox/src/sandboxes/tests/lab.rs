//! A node for tests that need neither root nor the kernel: an engine that makes directories, and a
//! plugin that is a shell script. Both keep everything on disk, so that it survives a killed
//! process, and can be counted.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_runtime::{ConfigDir, Runtime};
use russet_testkit::write_program;

use crate::engine::{Engine, EngineError, EngineState, Made};
use crate::error::SandboxError;
use crate::network::NamespaceOps;
use crate::sandboxes::recover;
use crate::{Config, Dns, Metadata, Metrics, Options, SandboxId, Sandboxes};

/// The node's directory. Its files inject failures: see [`Lab::set`].
#[derive(Clone)]
pub(super) struct Lab(pub(super) PathBuf);

pub(super) const BOOT: &str = "boot-1";
/// A pid that no process has: the kernel's PID_MAX_LIMIT is 2^22, and exclusive.
const UNUSED_PID: u32 = 1 << 22;
/// The other boot.
pub(super) const NEXT_BOOT: &str = "boot-2";

/// Takes an address for a container, and releases it. Files in the lab make it fail or kill its
/// caller.
const PLUGIN: &str = r#"#!/bin/sh
lab='LAB'
echo "$CNI_COMMAND $CNI_CONTAINERID netns=${CNI_NETNS##*/} $CNI_ARGS" >> "$lab/calls"
fail() { echo "{\"cniVersion\":\"1.0.0\",\"code\":100,\"msg\":\"$1\"}"; exit 1; }
case "$CNI_COMMAND" in
ADD)
    [ -e "$lab/kill-before-add" ] && kill -9 $PPID
    [ -e "$lab/go-on-after-death" ] && { kill -9 $PPID; read go < "$lab/go-on-after-death"; }
    : > "$lab/addresses/$CNI_CONTAINERID"
    cat > "$lab/stdin/$CNI_CONTAINERID"
    [ -e "$lab/hang-in-add" ] && sleep 600
    [ -e "$lab/kill-in-add" ] && kill -9 $PPID
    [ -e "$lab/fail-add" ] && fail 'no more addresses'
    echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.8.7/24"}]}' ;;
DEL)
    [ -e "$lab/fail-del" ] && fail 'store is away'
    rm -f "$lab/addresses/$CNI_CONTAINERID" "$lab/stdin/$CNI_CONTAINERID"
    [ -e "$lab/kill-in-del" ] && kill -9 $PPID ;;
STATUS)
    [ -e "$lab/fail-status" ] && fail 'not yet' ;;
esac
exit 0
"#;

const CONFLIST: &str =
    r#"{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"lab","capabilities":{"portMappings":true}}]}"#;

pub(super) struct Directories(pub(super) Lab);
struct Outside(Lab);

// === impl Lab ===

impl Lab {
    pub(super) fn new(dir: &Path) -> Self {
        for name in ["engine", "addresses", "stdin", "net.d", "bin"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let plugin = dir.join("bin/lab");
        write_program(&plugin, &PLUGIN.replace("LAB", dir.to_str().unwrap()));
        fs::write(dir.join("net.d/10-pods.conflist"), CONFLIST).unwrap();
        Self(dir.to_owned())
    }

    pub(super) fn options(&self) -> Options {
        Options {
            state_dir: self.0.join("state"),
            run_dir: self.0.join("run"),
            engine: Box::new(Directories(self.clone())),
            runtime: Runtime::new(vec![self.0.join("bin")], self.0.join("run/cni")),
            networks: Box::new(ConfigDir::new(self.0.join("net.d"))),
            metrics: Metrics::new(),
            lock_timeout: Duration::from_secs(60),
            on_waiting: |_| (),
        }
    }

    pub(super) fn try_open(&self, options: Options, boot_id: &str) -> Result<Sandboxes, SandboxError> {
        self.open_within(options, boot_id, recover::SETTLE_TIMEOUT)
    }

    /// With this timeout for removals at the start.
    pub(super) fn open_within(
        &self,
        options: Options,
        boot_id: &str,
        lock_timeout: Duration,
    ) -> Result<Sandboxes, SandboxError> {
        Sandboxes::open_with(options, Box::new(Outside(self.clone())), boot_id.to_owned(), lock_timeout)
    }

    pub(super) fn open(&self) -> Sandboxes {
        self.try_open(self.options(), BOOT).unwrap()
    }

    /// The machine was rebooted: everything in the kernel and below /run is gone.
    pub(super) fn reboot(&self) -> Sandboxes {
        let _ = fs::remove_dir_all(self.0.join("run"));
        for id in self.ids("engine") {
            fs::remove_dir_all(self.0.join("engine").join(id.as_str())).unwrap();
        }
        self.try_open(self.options(), NEXT_BOOT).unwrap()
    }

    /// From now on this fails.
    pub(super) fn set(&self, what: &str) {
        fs::write(self.0.join(what), "").unwrap();
    }

    /// From now on it succeeds.
    pub(super) fn clear(&self, what: &str) {
        let _ = fs::remove_file(self.0.join(what));
    }

    /// Calls of the plugin so far.
    pub(super) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Verbs that the plugin was called with for a sandbox.
    pub(super) fn verbs(&self, id: &SandboxId) -> Vec<String> {
        let calls = self.calls();
        let of = calls.iter().filter(|call| call.contains(id.as_str()));
        of.filter_map(|call| call.split(' ').next().map(str::to_owned)).collect()
    }

    pub(super) fn ids(&self, dir: &str) -> BTreeSet<SandboxId> {
        let names =
            fs::read_dir(self.0.join(dir)).into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.to_str().unwrap().parse().ok()).collect()
    }

    /// Everything that exists, by kind: addresses, objects of the engine, directories, records,
    /// cached results.
    pub(super) fn everything(&self) -> Vec<String> {
        let mut found = Vec::new();
        for dir in
            ["addresses", "engine", "run/sandboxes", "run/live", "state/checkpoints", "run/cni/results"]
        {
            let names =
                fs::read_dir(self.0.join(dir)).into_iter().flatten().map(|entry| entry.unwrap().file_name());
            found.extend(names.map(|name| format!("{dir}/{}", name.to_str().unwrap())));
        }
        found.sort();
        found
    }
}

pub(super) fn pod(name: &str) -> Config {
    let metadata = Metadata { name: name.into(), namespace: "ns1".into(), uid: "u1".into(), attempt: 0 };
    let dns = Dns { servers: vec![[10, 96, 0, 10].into()], ..Dns::default() };
    Config { metadata, hostname: name.into(), dns: Some(dns), ..Config::default() }
}

pub(super) fn host_pod(name: &str) -> Config {
    Config { host_network: true, ..pod(name) }
}

// === impl Directories ===

impl Directories {
    fn dir(&self, id: &SandboxId) -> PathBuf {
        self.0.0.join("engine").join(id.as_str())
    }
}

impl Engine for Directories {
    fn name(&self) -> &'static str {
        "directories"
    }

    fn create(&self, id: &SandboxId, config: &Config, dir: &Path) -> Result<Made, EngineError> {
        assert!(
            dir.join("resolv.conf").exists() && dir.join("hosts").exists() && dir.join("hostname").exists()
        );
        let checkpoint = self.0.0.join("state/checkpoints").join(id.as_str());
        assert!(checkpoint.exists(), "nothing is made before the checkpoint");
        fs::create_dir(self.dir(id)).unwrap();
        crate::fault::step();
        if self.0.0.join("fail-create").exists() {
            return Err(EngineError::new("make", id.as_str(), "out of processes"));
        }
        let netns = (!config.host_network).then_some(self.dir(id).join("netns"));
        if self.0.0.join("die-at-once").exists() {
            return Ok(Made { netns, pid: Some(UNUSED_PID), resolv_conf: None });
        }
        fs::write(self.dir(id).join("running"), "").unwrap();
        Ok(Made { netns, pid: Some(1), resolv_conf: None })
    }

    fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        let _ = fs::remove_file(self.dir(id).join("running"));
        Ok(())
    }

    fn remove(&self, id: &SandboxId) -> Result<(), EngineError> {
        if self.0.0.join("fail-remove").exists() {
            return Err(EngineError::new("remove", id.as_str(), "busy"));
        }
        let _ = fs::remove_dir_all(self.dir(id));
        Ok(())
    }

    fn state(&self, id: &SandboxId) -> Result<EngineState, EngineError> {
        let dir = self.dir(id);
        Ok(match (dir.exists(), dir.join("running").exists()) {
            (_, true) => EngineState::Running { pid: Some(1) },
            (true, false) => EngineState::Stopped,
            (false, false) => EngineState::Gone,
        })
    }

    fn list(&self) -> Result<Vec<SandboxId>, EngineError> {
        if self.0.0.join("fail-list").exists() {
            return Err(EngineError::new("list", "containers", "connection refused"));
        }
        Ok(self.0.ids("engine").into_iter().collect())
    }
}

// === impl Outside ===

impl NamespaceOps for Outside {
    fn raise_loopback(&self, netns: &Path) -> Result<(), SandboxError> {
        assert!(netns.parent().unwrap().exists());
        Ok(())
    }

    fn set_sysctls(&self, _: &Path, sysctls: &[(String, String)]) -> Result<(), SandboxError> {
        assert_eq!(sysctls, [], "pods of this node have none");
        Ok(())
    }

    fn addresses(&self, netns: &Path) -> Result<Vec<IpAddr>, SandboxError> {
        if self.0.0.join("fail-addresses").exists() {
            return Err(SandboxError::step(
                "read the addresses of eth0 in",
                netns.display(),
                "no file descriptors",
            ));
        }
        let id = netns.parent().and_then(Path::file_name).unwrap();
        let has = self.0.0.join("addresses").join(id).exists() && !self.0.0.join("no-address").exists();
        Ok(if has { vec![[10, 9, 8, 7].into()] } else { Vec::new() })
    }

    fn exists(&self, netns: &Path) -> bool {
        netns.with_file_name("running").exists()
    }
}
