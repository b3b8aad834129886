//! The executable as a runtime sees it: environment and stdin in, one document and an exit code out.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A copy of the executable in a directory of its own: beside the original there may be a real `russet`.
struct Plugin {
    dir: TempDir,
}

struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Plugin {
    fn new() -> Self {
        let plugin = Self { dir: tempfile::tempdir().unwrap() };
        plugin.sh("cp \"$1\" \"$2\"", &[env!("CARGO_BIN_EXE_russet-cni"), &plugin.path("russet-cni")]);
        plugin
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Files that are to be executed are written by another process: a test thread that forks while this process has
    /// one open for writing would make its execution fail with ETXTBSY.
    fn sh(&self, script: &str, args: &[&str]) {
        let status = Command::new("/bin/sh").args(["-c", script, "sh"]).args(args).status().unwrap();
        assert!(status.success());
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        self.sh("printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\"; chmod 755 \"$1\"", &[&path, text]);
        path
    }

    fn config(&self, more: Value) -> String {
        let mut config =
            json!({"cniVersion": "1.1.0", "name": "n", "type": "russet", "agent_socket": self.path("s")});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config.to_string()
    }

    fn run(&self, exe: &str, vars: &[(&str, &str)], stdin: &str) -> Done {
        let mut command = Command::new(self.path(exe));
        command.env_clear().env("SECRET", "not for the agent").envs(vars.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let output = child.wait_with_output().unwrap();
        Done {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn call(&self, verb: &str, more: Value) -> Done {
        self.run("russet-cni", &vars(verb), &self.config(more))
    }

    /// An agent for one request: it hands out the request and hangs up after `answer`.
    fn agent(&self, answer: &'static str) -> JoinHandle<(String, Value)> {
        let listener = UnixListener::bind(self.path("s")).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            let mut chunk = [0; 4096];
            loop {
                let count = stream.read(&mut chunk).unwrap();
                received.extend_from_slice(&chunk[..count]);
                let text = String::from_utf8_lossy(&received);
                let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
                if let (false, Ok(body)) = (head.is_empty(), serde_json::from_str(body)) {
                    stream.write_all(answer.as_bytes()).unwrap();
                    return (head.to_owned(), body);
                }
            }
        })
    }
}

impl Done {
    fn error_code(&self) -> u64 {
        assert_eq!(self.code, Some(1), "{}", self.stdout);
        let document: Value = serde_json::from_str(&self.stdout).unwrap();
        assert!(document["cniVersion"].is_string() && document["msg"].is_string());
        document["code"].as_u64().unwrap()
    }
}

fn vars(verb: &str) -> [(&str, &str); 5] {
    [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ]
}

#[test]
fn run_by_hand_it_introduces_itself() {
    // cni-runtime.md section 6.2 item 1
    let done = Plugin::new().run("russet-cni", &[], "");
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""));
    assert!(done.stderr.contains("CNI russet plugin") && done.stderr.contains("1.1.0"));
}

#[test]
fn version_needs_no_agent() {
    // cni-runtime.md section 6.2 item 9
    let done = Plugin::new().run("russet-cni", &[("CNI_COMMAND", "VERSION")], r#"{"cniVersion":"1.0.0"}"#);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["supportedVersions"].as_array().unwrap().len(), 7);
    assert_eq!(done.code, Some(0));
}

#[test]
fn a_bad_request_never_reaches_the_agent() {
    // cni-runtime.md section 6.2 items 2 to 8, 10 and 11
    let plugin = Plugin::new();
    let code = |vars: &[(&str, &str)], stdin: &str| plugin.run("russet-cni", vars, stdin).error_code();
    let config = plugin.config(json!({}));
    assert_eq!(code(&[("CNI_COMMAND", "ADD")], &config), 4);
    assert_eq!(code(&[("CNI_COMMAND", "FOO")], &config), 4);
    assert_eq!(code(&vars("ADD"), "{bad"), 6);
    assert_eq!(code(&vars("ADD"), "{}"), 7);
    assert_eq!(code(&vars("ADD"), r#"{"name":"n","cniVersion":"9.9.9"}"#), 1);
    assert_eq!(code(&vars("CHECK"), r#"{"name":"n","cniVersion":"0.3.1"}"#), 1);
    for (key, bad) in [
        ("CNI_CONTAINERID", "a/b"),
        ("CNI_IFNAME", "a234567890123456"),
        ("CNI_IFNAME", "a/b"),
        ("CNI_IFNAME", "a b"),
        ("CNI_IFNAME", ".."),
    ] {
        assert_eq!(code(&[&vars("ADD")[..], &[(key, bad)]].concat(), &config), 4, "{key}={bad}");
    }
    assert_eq!(code(&vars("ADD"), r#"{"name":"a/b","cniVersion":"1.0.0"}"#), 7);
    for verb in ["GC", "STATUS"] {
        assert_eq!(code(&vars(verb), r#"{"name":"n","cniVersion":"1.0.0"}"#), 1, "{verb}");
    }
    assert_eq!(code(&vars("ADD"), &" ".repeat(10 * 1024 * 1024)), 5);
}

#[test]
fn the_agent_gets_the_request_and_its_answer_is_printed() {
    // ARCHITECTURE.md, "ADD and DEL", step 1
    let plugin = Plugin::new();
    let agent = plugin.agent("HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{\"cniVersion\":\"1.1.0\"}");
    symlink("russet-cni", plugin.dir.path().join("loopback")).unwrap();
    let done = plugin.run("loopback", &vars("ADD"), &plugin.config(json!({})));
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "{\"cniVersion\":\"1.1.0\"}"));
    let (head, body) = agent.join().unwrap();
    assert!(head.starts_with("POST /v1/cni HTTP/1.1\r\n"), "{head}");
    assert_eq!((&body["v"], &body["plugin"]), (&json!(1), &json!("loopback")));
    assert_eq!(body["env"], json!(vars("ADD").into_iter().collect::<std::collections::BTreeMap<_, _>>()));
    assert!(body["deadline_ms"].as_u64().unwrap() < 60_000);
}

#[test]
fn only_calicos_plugins_pass_on_the_variables_that_say_where_etcd_is() {
    // calico-ipam.md section 4.1
    let secret = ("ETCD_PASSWORD", "opensesame");
    for (name, passed) in [("calico-ipam", json!("opensesame")), ("loopback", Value::Null)] {
        let plugin = Plugin::new();
        let agent = plugin.agent("HTTP/1.1 200 OK\r\nRusset-Stderr: c2FpZAo=\r\nContent-Length: 2\r\n\r\n{}");
        symlink("russet-cni", plugin.dir.path().join(name)).unwrap();
        let vars: Vec<_> = vars("DEL").into_iter().chain([secret, ("PATH", "/bin")]).collect();
        let done = plugin.run(name, &vars, &plugin.config(json!({})));
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), "said\n"));
        let body = agent.join().unwrap().1;
        assert_eq!(body["env"].get("ETCD_PASSWORD").unwrap_or(&Value::Null), &passed, "{name}");
        assert_eq!(body["env"].get("PATH"), None);
    }
}

#[test]
fn status_of_calicos_plugins_needs_no_agent() {
    let plugin = Plugin::new();
    symlink("russet-cni", plugin.dir.path().join("calico-ipam")).unwrap();
    plugin.script("russet", "echo \"$RUSSET_CNI_PLUGIN $CNI_COMMAND\"");
    let done = plugin.run("calico-ipam", &vars("STATUS"), &plugin.config(json!({})));
    assert_eq!((done.code, done.stdout.trim_end()), (Some(0), "calico-ipam STATUS"));
}

#[test]
fn the_agents_error_is_printed_and_the_exit_code_is_1() {
    let plugin = Plugin::new();
    let agent = plugin.agent(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 24\r\n\r\n{\"code\":11,\"msg\":\"busy\"} ",
    );
    let done = plugin.call("ADD", json!({}));
    agent.join().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&done.stdout).unwrap()["code"], 11);
    assert_eq!(done.code, Some(1));
}

#[test]
fn a_connection_lost_after_sending_is_code_11() {
    // ARCHITECTURE.md, "ADD and DEL"; cni-runtime.md section 6.2 item 64
    let plugin = Plugin::new();
    plugin.script("russet", "echo '{}'");
    let agent = plugin.agent("");
    assert_eq!(plugin.call("ADD", json!({})).error_code(), 11);
    agent.join().unwrap();
}

#[test]
fn status_without_an_agent_is_code_50() {
    // cni-runtime.md section 6.2 item 62
    let plugin = Plugin::new();
    plugin.script("russet", "echo '{}'");
    assert_eq!(plugin.call("STATUS", json!({})).error_code(), 50);
    drop(UnixListener::bind(plugin.path("s")).unwrap());
    let refused = plugin.call("STATUS", json!({}));
    assert_eq!(refused.error_code(), 50);
    // ADD works all the same: the message says why this node should get no new pods.
    assert!(refused.stdout.contains("start `russet agent`"), "{}", refused.stdout);
}

const DIRECT: &str = "[ \"$* $RUSSET_CNI_PLUGIN\" = 'cni-direct russet' ] || exit 9\nprintf '%s|%s|' \"$CNI_COMMAND\" \"$CNI_NETNS\"\nwc -c\nexit 3";

fn is_direct(done: &Done, stdin: &str) {
    assert_eq!(done.stdout.trim_end(), format!("ADD|/run/netns/c1|{}", stdin.len()));
    assert_eq!(done.code, Some(3), "the exit code is the other program's");
}

#[test]
fn without_an_agent_it_becomes_the_russet_beside_it() {
    // ARCHITECTURE.md, "ADD and DEL"
    let plugin = Plugin::new();
    plugin.script("russet", DIRECT);
    is_direct(&plugin.call("ADD", json!({})), &plugin.config(json!({})));
    drop(UnixListener::bind(plugin.path("s")).unwrap());
    let large = json!({"padding": "x".repeat(500_000)});
    is_direct(&plugin.call("ADD", large.clone()), &plugin.config(large));
}

#[test]
fn the_russet_of_the_configuration_is_found_when_the_plugin_itself_has_that_name() {
    // ARCHITECTURE.md, "ADD and DEL"
    let plugin = Plugin::new();
    fs::hard_link(plugin.path("russet-cni"), plugin.path("russet")).unwrap();
    let more = json!({"russet_path": plugin.script("elsewhere", DIRECT)});
    is_direct(&plugin.run("russet", &vars("ADD"), &plugin.config(more.clone())), &plugin.config(more));
    let refused = plugin.call("ADD", json!({}));
    assert_eq!(refused.error_code(), 5);
    // An agent of another root may run on this machine.
    let none = format!("no russet agent listens at {}, and the russet command", plugin.path("s"));
    assert!(refused.stdout.contains(&none), "{}", refused.stdout);
    assert_eq!(plugin.call("ADD", json!({"russet_path": "relative"})).error_code(), 7);
}

#[test]
fn a_plugin_taken_for_the_command_does_not_execute_itself_for_ever() {
    let plugin = Plugin::new();
    let done = Command::new(plugin.path("russet-cni")).arg("cni-direct").output().unwrap();
    let document: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((document["code"].as_u64(), done.status.code()), (Some(5), Some(1)));
}

#[test]
fn a_stdout_that_takes_nothing_is_no_panic() {
    let plugin = Plugin::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(plugin.path("russet-cni"));
    let child =
        command.env_clear().env("CNI_COMMAND", "FOO").stdin(Stdio::null()).stdout(full).output().unwrap();
    assert_eq!((child.status.code(), child.stderr.len()), (Some(1), 0));
}
