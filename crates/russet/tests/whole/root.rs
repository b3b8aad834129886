//! Messages of commands with `--root`: another node of the same machine may run below `/`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::node::Answer;

fn russet(root: &Path, args: &[&str]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(args).arg("--root").arg(root).env_remove("RUSSET_STORE").stdin(Stdio::null());
    command.output().unwrap().into()
}

/// The answer of the command as a plugin of a network whose agent is that of the root.
fn status(root: &Path) -> Answer {
    let machine = tempfile::tempdir().unwrap();
    let plugin = machine.path().join("russet");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_russet"), &plugin).unwrap();
    let config = machine.path().join("config");
    let socket = root.join("run/russet/cni.sock");
    let network = json!({ "cniVersion": "1.1.0", "name": "n", "type": "russet", "agent_socket": socket });
    std::fs::write(&config, network.to_string()).unwrap();
    let mut command = Command::new(plugin);
    command.env_clear().env("CNI_COMMAND", "STATUS").env("CNI_PATH", machine.path());
    command.stdin(std::fs::File::open(config).unwrap()).output().unwrap().into()
}

/// A path of Russet's that is not below the root, or a command for the node of root `/`.
fn contradiction(text: &str, root: &str) -> Option<String> {
    let below = text.replace(root, "ROOT");
    let elsewhere = ["/run/russet", "/var/lib/russet", "/etc/russet", "/etc/cni", "/var/lib/calico"];
    let named = |path: &&&str| below.match_indices(**path).any(|(at, _)| !below[..at].ends_with("ROOT"));
    let command = |part: &&str| part.starts_with("russet ") && !part.contains("--root ROOT");
    let commands = below.split('`').skip(1).step_by(2);
    elsewhere
        .iter()
        .find(named)
        .map(ToString::to_string)
        .or(commands.into_iter().find(command).map(str::to_owned))
}

#[test]
#[ignore = "root: makes the directories of a node"]
fn errors_name_files_and_commands_of_the_root_in_use() {
    let machine = tempfile::tempdir().unwrap();
    let root = machine.path();
    let shown = root.display().to_string();
    let put = russet(root, &["store", "put", "/russet/test", "{}"]);
    assert_eq!(put.status, 0, "{put:?}");
    for (args, says) in [
        (&["journal"][..], format!("no `russet agent --root {shown}` has run")),
        (&["drift"], format!("no agent runs at {shown}/run/russet/cni.sock")),
        (&["sandbox", "inspect", "web"], format!("`russet sandbox ls --root {shown}` shows")),
        (&["ipam", "split", "--cidr", "10.9.0.0/16", "2"], format!("see `russet ipam show --root {shown}`")),
        (&["ipam", "why", "--node-name", "nowhere"], format!("{shown}/var/lib/calico/nodename on the node")),
    ] {
        let answer = russet(root, args);
        assert!(answer.status == 1 && answer.stderr.contains(&says), "{args:?}: {answer:?}");
        assert_eq!(contradiction(&answer.stderr, &shown), None, "{args:?}: {answer:?}");
    }
    let answer = status(root);
    let message = answer.error().to_string();
    assert!(message.contains(&format!("start `russet agent --root {shown}`")), "{message}");
    assert_eq!(contradiction(&message, &shown), None, "{message}");
}

#[test]
fn a_message_about_another_root_is_recognised() {
    for text in ["read /run/russet/journal", "start `russet agent`", "ROOT/x: see /var/lib/russet"] {
        assert!(contradiction(text, "/srv/b").is_some(), "{text}");
    }
    for text in
        ["read /srv/b/run/russet/journal", "start `russet agent --root /srv/b`", "`calicoctl get nodes`"]
    {
        assert_eq!(contradiction(text, "/srv/b"), None, "{text}");
    }
}
