//! Tests of `host-local` alone, and beside the Go plugin in one directory.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use russet_cni_spec::Version;
use serde_json::{Value, json};

use super::*;

/// A network in a temporary directory.
struct Bench {
    root: tempfile::TempDir,
    version: &'static str,
    ipam: Value,
    more: Value,
}

const ONE: &str = r#"[[{"subnet": "10.1.2.0/24"}]]"#;

impl Bench {
    fn new(ranges: &str) -> Self {
        let ranges: Value = serde_json::from_str(ranges).unwrap();
        let root = tempfile::tempdir().unwrap();
        let ipam = json!({"type": "host-local", "ranges": ranges, "dataDir": root.path().join("nets")});
        Self { root, version: "1.1.0", ipam, more: json!({}) }
    }

    fn stdin(&self) -> Vec<u8> {
        let mut config =
            json!({"cniVersion": self.version, "name": "net", "type": "bridge", "ipam": self.ipam});
        config.as_object_mut().unwrap().extend(self.more.as_object().unwrap().clone());
        config.to_string().into_bytes()
    }

    fn vars(&self, verb: &str, container: &str, args: &str) -> Vec<(String, String)> {
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", "/run/netns/none"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", args),
            ("CNI_PATH", "/nowhere"),
        ];
        vars.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
    }

    fn ask(&self, verb: &str, container: &str, args: &str) -> Result<Option<CniResult>, CniError> {
        let request = Request::new(self.vars(verb, container, args), self.stdin())?;
        execute(self.root.path(), &request)
    }

    fn add(&self, container: &str) -> Result<Vec<String>, CniError> {
        Ok(self.ask("ADD", container, "")?.unwrap().ips.iter().map(|ip| ip.address.to_string()).collect())
    }

    fn one(&self, container: &str) -> String {
        self.add(container).unwrap().remove(0)
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("nets/net")
    }

    fn files(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip.")).collect()
    }

    /// Runs the Go plugin in the same directory; returns its result or its error message.
    fn go(&self, verb: &str, container: &str) -> Result<Value, String> {
        let mut command = Command::new(russet_testkit::require_cni_plugin("host-local"));
        command.env_clear().envs(self.vars(verb, container, "")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&self.stdin()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if output.status.success() { Ok(serde_json::from_str(&text).unwrap_or_default()) } else { Err(text) }
    }

    fn go_add(&self, container: &str) -> String {
        let result = self.go("ADD", container).unwrap();
        result["ips"][0]["address"].as_str().unwrap().to_owned()
    }
}

#[test]
fn an_address_is_a_file_that_names_its_interface() {
    // cni-runtime.md sections 5.1 and 6.2 item 35
    let bench = Bench::new(ONE);
    assert_eq!(bench.one("abc"), "10.1.2.2/24");
    let path = bench.dir().join("10.1.2.2");
    assert_eq!(std::fs::read(&path).unwrap(), b"abc\r\neth0");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read(bench.dir().join("last_reserved_ip.0")).unwrap(), b"10.1.2.2");
    assert_eq!(bench.files(), BTreeSet::from(["10.1.2.2".to_owned()]));
}

#[test]
fn results_have_the_shape_of_their_version() {
    // cni-runtime.md section 6.2 item 34
    let ranges = r#"[[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]"#;
    let mut bench = Bench::new(ranges);
    bench.ipam["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00:1::9"}]);
    for (index, version) in Version::ALL.iter().enumerate() {
        bench.version = version.as_str();
        let result = bench.ask("ADD", &format!("c{index}"), "").unwrap().unwrap();
        let value = serde_json::from_slice::<Value>(&result.encode()).unwrap();
        assert_eq!(value["cniVersion"], version.as_str());
        match version {
            Version::V0_1_0 | Version::V0_2_0 => {
                assert_eq!(value["ip4"]["gateway"], "10.1.2.1");
                assert_eq!(value["ip4"]["routes"], json!([{"dst": "0.0.0.0/0"}]));
                assert_eq!(value["ip6"]["routes"], json!([{"dst": "::/0", "gw": "fd00:1::9"}]));
            }
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => {
                assert_eq!(value["ips"][0]["version"], "4");
                assert_eq!(value["ips"][1]["version"], "6");
            }
            _ => assert!(value["ips"][1].get("version").is_none() && value.get("dns").is_none()),
        }
    }
    bench.version = "0.2.0";
    bench.ipam["ranges"] = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]);
    assert!(bench.add("c9").unwrap_err().msg.contains("more than 1 address per family"));
}

#[test]
fn a_second_add_is_refused_and_allocates_nothing() {
    // cni-runtime.md sections 5.1 and 6.2 item 23
    let bench = Bench::new(r#"[[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]"#);
    bench.add("abc").unwrap();
    let before = bench.files();
    let error = bench.add("abc").unwrap_err();
    assert!(error.msg.contains("10.1.2.2 has been allocated to abc, duplicate allocation"), "{error}");
    let error = bench.ask("ADD", "abc", "IP=10.1.2.77").unwrap_err();
    assert!(error.msg.contains("duplicate allocation"), "{error}");
    assert_eq!(bench.files(), before);
}

#[test]
fn all_addresses_are_allocated_or_none() {
    // cni-runtime.md section 6.2 item 37
    let bench = Bench::new(
        r#"[[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24", "rangeStart": "10.1.3.5", "rangeEnd": "10.1.3.5"}]]"#,
    );
    bench.add("a").unwrap();
    let before = bench.files();
    let error = bench.add("b").unwrap_err();
    assert_eq!(error.code, failure::NO_ADDRESS);
    assert!(error.msg.contains("no IP addresses available in range set: 10.1.3.5-10.1.3.5"), "{error}");
    assert_eq!(bench.files(), before);
    bench.ask("DEL", "a", "").unwrap();
    assert_eq!(bench.add("b").unwrap(), ["10.1.2.3/24", "10.1.3.5/24"]);
}

#[test]
fn a_failed_write_allocates_nothing() {
    let bench = Bench::new(r#"[[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]"#);
    // A rename cannot replace a directory.
    std::fs::create_dir_all(bench.dir().join("last_reserved_ip.1/full")).unwrap();
    assert_eq!(bench.add("a").unwrap_err().code, russet_cni_spec::code::IO);
    assert_eq!(bench.files(), BTreeSet::new());
}

#[test]
fn del_frees_only_the_interfaces_own_and_as_often_as_asked() {
    // cni-runtime.md section 6.2 items 21 and 22
    let bench = Bench::new(ONE);
    bench.ask("DEL", "a", "").unwrap();
    assert!(!bench.dir().exists(), "nothing is made to find nothing");
    bench.add("a").unwrap();
    bench.add("b").unwrap();
    std::fs::write(bench.dir().join("10.1.2.99"), "a\r\nnet1").unwrap();
    std::fs::write(bench.dir().join("10.1.2.98"), "a").unwrap();
    bench.ask("DEL", "a", "").unwrap();
    let names = |list: &[&str]| list.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(bench.files(), names(&["10.1.2.3", "10.1.2.98", "10.1.2.99"]));
    bench.ask("DEL", "a", "").unwrap();
    assert_eq!(
        bench.files(),
        names(&["10.1.2.3", "10.1.2.99"]),
        "a file of an old plugin, once nothing else is left"
    );
}

#[test]
fn del_works_with_a_configuration_whose_ranges_are_broken() {
    let mut bench = Bench::new(ONE);
    bench.add("a").unwrap();
    bench.ipam["ranges"] = json!([[{"subnet": "10.1.2.0/32"}]]);
    bench.ask("DEL", "a", "").unwrap();
    assert_eq!(bench.files(), BTreeSet::new());
}

#[test]
fn an_empty_file_is_taken_over_and_collected() {
    // flannel.md section 0; the machine lost power between creating and writing the file.
    let bench = Bench::new(r#"[[{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.2"}]]"#);
    std::fs::create_dir_all(bench.dir()).unwrap();
    std::fs::write(bench.dir().join("10.1.2.2"), "").unwrap();
    std::fs::write(bench.dir().join("last_reserved_ip.0"), "").unwrap();
    bench.ask("DEL", "a", "").unwrap();
    assert_eq!(bench.one("a"), "10.1.2.2/24");
    assert_eq!(std::fs::read(bench.dir().join("10.1.2.2")).unwrap(), b"a\r\neth0");
}

#[test]
fn requested_addresses_are_given_or_the_request_is_refused() {
    // cni-runtime.md section 5.1
    let mut bench = Bench::new(r#"[[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]"#);
    bench.more = json!({"args": {"cni": {"ips": ["fd00:1::77"]}}});
    let result = bench.ask("ADD", "a", "IP=10.1.2.50").unwrap().unwrap();
    assert_eq!(
        result.ips.iter().map(|ip| ip.address.to_string()).collect::<Vec<_>>(),
        ["10.1.2.50/24", "fd00:1::77/64"]
    );
    bench.more = json!({"runtimeConfig": {"ips": ["10.1.2.51/16", "fd00:1::78"]}});
    assert_eq!(bench.add("b").unwrap(), ["10.1.2.51/24", "fd00:1::78/64"]);
    let before = bench.files();
    for (ips, why) in [
        (json!(["10.1.2.50"]), "requested IP address 10.1.2.50 is not available"),
        (json!(["10.1.2.1"]), "requested ip 10.1.2.1 is subnet's gateway"),
        (json!(["192.0.2.1"]), "failed to allocate all requested IPs: 192.0.2.1"),
        (json!(["10.1.2.60", "10.1.2.61"]), "failed to allocate all requested IPs: 10.1.2.61"),
    ] {
        bench.more = json!({"runtimeConfig": {"ips": ips}});
        let error = bench.add("c").unwrap_err();
        assert!(error.msg.contains(why), "{error}");
    }
    assert_eq!(bench.files(), before);
}

#[test]
fn ranges_of_the_runtime_come_first() {
    let mut bench = Bench::new(ONE);
    bench.more = json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}});
    bench.ipam["subnet"] = "10.8.0.0/24".into();
    assert_eq!(bench.add("a").unwrap(), ["10.9.0.2/24", "10.8.0.2/24", "10.1.2.2/24"]);
    bench.more = json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.1.0.0/16"}]]}});
    assert!(bench.add("b").unwrap_err().msg.contains("range set 0 overlaps with 2"));
}

#[test]
fn check_finds_what_the_interface_has_lost() {
    let mut bench = Bench::new(ONE);
    assert!(
        bench.ask("CHECK", "a", "").unwrap_err().msg.contains("failed to find address added by container a")
    );
    let result = bench.ask("ADD", "a", "").unwrap().unwrap();
    bench.more = json!({"prevResult": result.to_value()});
    bench.ask("CHECK", "a", "").unwrap();
    std::fs::rename(bench.dir().join("10.1.2.2"), bench.dir().join("10.1.2.9")).unwrap();
    assert!(bench.ask("CHECK", "a", "").unwrap_err().msg.contains("10.1.2.2 is no longer held"));
}

#[test]
fn gc_frees_addresses_that_are_not_in_the_list() {
    // cni-runtime.md section 6.2 item 63; plugins#1047
    let mut bench = Bench::new(ONE);
    bench.add("a").unwrap();
    bench.add("b").unwrap();
    for (name, text) in [("10.1.2.90", "c"), ("10.1.2.91", "d"), ("10.1.2.92", ""), ("notes", "a\r\neth1")] {
        std::fs::write(bench.dir().join(name), text).unwrap();
    }
    let refused = bench.ask("GC", "", "").unwrap_err();
    assert!(refused.code == 7 && refused.msg.contains("cni.dev/valid-attachments"), "{refused}");
    assert_eq!(bench.files().len(), 6, "without a list nothing is known to be stale");
    let valid = json!([{"containerID": "a", "ifname": "eth0"}, {"containerID": "c", "ifname": "eth0"},
        {"containerID": "b", "ifname": "eth1"}]);
    bench.more = json!({"cni.dev/valid-attachments": valid});
    for _ in 0..2 {
        bench.ask("GC", "", "").unwrap();
        let left: Vec<String> = bench.files().into_iter().collect();
        assert_eq!(left, ["10.1.2.2", "10.1.2.90", "notes"]);
    }
}

#[test]
fn status_says_whether_the_configuration_can_give_addresses() {
    let mut bench = Bench::new(ONE);
    bench.ask("STATUS", "", "").unwrap();
    bench.ipam["ranges"] = json!([]);
    assert!(bench.ask("STATUS", "", "").unwrap_err().msg.contains("no IP ranges specified"));
}

#[test]
fn unknown_arguments_need_ignore_unknown() {
    // cni-runtime.md section 6.2 item 38
    let bench = Bench::new(ONE);
    assert!(bench.ask("ADD", "a", "FOO=1").unwrap_err().msg.contains("ARGS: unknown args"));
    bench.ask("ADD", "a", "FOO=1;IgnoreUnknown=1").unwrap();
}

#[test]
fn nothing_in_the_directory_makes_a_request_panic() {
    let bench = Bench::new(ONE);
    std::fs::create_dir_all(bench.dir()).unwrap();
    for (name, text) in
        [("10.1.2.2", &b"\xff\xfe\r\n"[..]), ("10.1.2.3", &[b'x'; 100_000]), ("10.1.2.04", b"a")]
    {
        std::fs::write(bench.dir().join(name), text).unwrap();
    }
    std::fs::write(bench.dir().join("last_reserved_ip.0"), b"\xff").unwrap();
    assert_eq!(bench.one("a"), "10.1.2.4/24");
    bench.ask("DEL", "a", "").unwrap();
}

#[test]
#[ignore = "tool: the Go plugin host-local"]
fn each_plugin_frees_addresses_of_the_other() {
    // flannel.md section 8; cni-runtime.md section 5.1
    let bench = Bench { version: "1.0.0", ..Bench::new(ONE) };
    assert_eq!(bench.one("ours"), "10.1.2.2/24");
    assert_eq!(bench.go_add("theirs"), "10.1.2.3/24");
    assert_eq!(bench.one("ours2"), "10.1.2.4/24", "both continue one order");
    assert!(bench.go("ADD", "ours").unwrap_err().contains("duplicate allocation is not allowed"));
    assert!(bench.add("theirs").unwrap_err().msg.contains("duplicate allocation is not allowed"));
    bench.ask("CHECK", "theirs", "").unwrap();
    bench.go("DEL", "ours").unwrap();
    bench.go("DEL", "ours2").unwrap();
    bench.ask("DEL", "theirs", "").unwrap();
    assert_eq!(bench.files(), BTreeSet::new());
}

#[test]
#[ignore = "tool: the Go plugin host-local"]
fn both_give_the_same_answer_to_the_same_request() {
    for version in Version::ALL {
        let mut answers = [true, false].map(|ours| {
            let mut bench = Bench::new(r#"[[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]"#);
            bench.version = version.as_str();
            bench.ipam["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00:1::9"}]);
            if ours {
                bench.ask("ADD", "a", "").unwrap().unwrap().to_value()
            } else {
                bench.go("ADD", "a").unwrap_or_default()
            }
        });
        for answer in &mut answers {
            // Libraries before 1.1 print an empty `dns` from 1.0.0 on, too.
            let _ = answer.as_object_mut().map(|object| object.remove("dns"));
        }
        if version == Version::V1_1_0 {
            assert_eq!(
                answers[1],
                Value::Null,
                "Debian's 1.1.1 knows no 1.1.0; should it, this test compares that, too"
            );
        } else {
            assert_eq!(answers[0], answers[1], "{version}");
        }
    }
}

#[test]
#[ignore = "tool: the Go plugin host-local"]
fn both_at_once_never_give_an_address_twice() {
    // plugins#561: many processes wait for one lock.
    const EACH: usize = 20;
    let bench = Bench { version: "1.0.0", ..Bench::new(ONE) };
    let given: Vec<String> = std::thread::scope(|scope| {
        let bench = &bench;
        let ours: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    (0..EACH).map(|n| bench.one(&format!("ours{thread}-{n}"))).collect::<Vec<_>>()
                })
            })
            .collect();
        let theirs: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    (0..EACH).map(|n| bench.go_add(&format!("go{thread}-{n}"))).collect::<Vec<_>>()
                })
            })
            .collect();
        ours.into_iter().chain(theirs).flat_map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: BTreeSet<&String> = given.iter().collect();
    assert_eq!((given.len(), distinct.len(), bench.files().len()), (4 * EACH, 4 * EACH, 4 * EACH));
}
