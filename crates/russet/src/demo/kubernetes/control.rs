//! The cluster's control plane in the outside host's namespace: etcd, API server, controller manager and scheduler, at the address that is the
//! nodes' gateway.
//!
//! The API server makes its certificate and its key in the demo's directory. Users have random bearer tokens that are valid as long as the demo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use russet_linux::{NetNs, process, random};
use serde_json::json;

use super::api::Api;
use super::programs::Programs;
use crate::demo::datastore;
use crate::demo::fleet::Fleet;
use crate::demo::lab::{self, DIR, GATEWAYS, OUTSIDE};
use crate::demo::{DemoError, Interrupt};

/// The port of the API server.
const PORT: u16 = 6443;
/// The addresses of services; none is used.
const SERVICES: &str = "10.96.0.0/16";
/// An API server makes some hundred objects before it is ready; on a busy machine that takes minutes.
pub const DEADLINE: Duration = Duration::from_secs(300);
/// The users with a token, and their groups.
const USERS: [(&str, Option<&str>); 3] = [
    (ADMINISTRATOR, Some("system:masters")),
    ("system:kube-controller-manager", None),
    ("system:kube-scheduler", None),
];
const ADMINISTRATOR: &str = "demo-administrator";

/// The administrator's kubeconfig.
pub fn kubeconfig() -> PathBuf {
    file(&format!("{ADMINISTRATOR}.kubeconfig"))
}

fn file(name: &str) -> PathBuf {
    Path::new(DIR).join("kubernetes").join(name)
}

/// Starts all four, and waits until the API server is ready.
pub fn start(programs: &Programs, fleet: &mut Fleet, interrupt: &Interrupt) -> Result<Api, DemoError> {
    let directory = file("");
    fs::create_dir_all(&directory)
        .map_err(|source| DemoError::io(format!("make {}", directory.display()), source))?;
    fleet.spawn("etcd", datastore::spawned_etcd(&programs.etcd)?)?;
    let mut tokens = String::new();
    for (user, group) in USERS {
        let token = random_token()?;
        let group = group.map(|group| format!(",{group}")).unwrap_or_default();
        tokens.push_str(&format!("{token},{user},{user}{group}\n"));
        write_kubeconfig(&file(&format!("{user}.kubeconfig")), &token, "default")?;
    }
    write(&file("tokens.csv"), &tokens)?;
    fleet.spawn("kube-apiserver", inside(apiserver(&programs.apiserver))?)?;
    let look = || Api::open(&kubeconfig()).is_ok_and(|api| api.is_ready());
    fleet.until(interrupt, "the API server", DEADLINE, look)?;
    for (program, user) in [(&programs.controllers, USERS[1].0), (&programs.scheduler, USERS[2].0)] {
        let name = user.trim_start_matches("system:");
        let mut command = command(program);
        command.arg(format!("--kubeconfig={}", file(&format!("{user}.kubeconfig")).display()));
        command.arg("--leader-elect=false");
        if name == "kube-controller-manager" {
            command.args(controller_flags());
        }
        fleet.spawn(name, inside(command)?)?;
    }
    Api::open(&kubeconfig())
}

/// A kubeconfig with a bearer token.
pub fn write_kubeconfig(path: &Path, token: &str, namespace: &str) -> Result<(), DemoError> {
    let cluster = json!({ "server": format!("https://{}:{PORT}", GATEWAYS[0]), "certificate-authority": file("apiserver.crt") });
    let context = json!({ "cluster": "demo", "user": "demo", "namespace": namespace });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "demo",
        "clusters": [{ "name": "demo", "cluster": cluster }],
        "users": [{ "name": "demo", "user": { "token": token } }],
        "contexts": [{ "name": "demo", "context": context }],
    });
    write(path, &config.to_string())
}

/// Writes a file into the demo's directory, which only root enters.
pub fn write(path: &Path, text: &str) -> Result<(), DemoError> {
    fs::write(path, text).map_err(|source| DemoError::io(format!("write {}", path.display()), source))
}

fn random_token() -> Result<String, DemoError> {
    let bytes: [u8; 16] = random::secret().map_err(|source| DemoError::io("make a token", source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A program with none of the caller's settings.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).current_dir(DIR);
    command
}

fn inside(mut command: Command) -> Result<Command, DemoError> {
    let outside = NetNs::open(lab::namespace_path(OUTSIDE));
    let outside = outside.map_err(|e| DemoError::step(format!("open namespace {OUTSIDE}"), e))?;
    process::in_netns(&mut command, &outside)
        .map_err(|e| DemoError::step("start in the outside namespace", e))?;
    Ok(command)
}

fn apiserver(program: &Path) -> Command {
    let at = |name: &str| file(name).display().to_string();
    let address = GATEWAYS[0].to_string();
    let flags = [
        ("etcd-servers", datastore::etcd_url()),
        ("bind-address", address.clone()),
        ("advertise-address", address),
        ("secure-port", PORT.to_string()),
        // It makes apiserver.crt and apiserver.key there.
        ("cert-dir", at("")),
        ("token-auth-file", at("tokens.csv")),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("service-account-key-file", at("apiserver.key")),
        ("service-account-signing-key-file", at("apiserver.key")),
        ("service-cluster-ip-range", SERVICES.to_owned()),
        ("profiling", "false".to_owned()),
    ];
    let mut apiserver = command(program);
    apiserver.args(flags.map(|(name, value)| format!("--{name}={value}")));
    apiserver
}

fn controller_flags() -> [String; 4] {
    [
        format!("--service-account-private-key-file={}", file("apiserver.key").display()),
        format!("--root-ca-file={}", file("apiserver.crt").display()),
        "--use-service-account-credentials".to_owned(),
        // The demo reports a node when it changes, and sends no signs of life as a kubelet does.
        "--node-monitor-grace-period=24h".to_owned(),
    ]
}
