//! Command lines and environments.

use super::*;

fn request(words: &[&str], environment: &[(&str, &str)]) -> Request {
    let look =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    parse("flanneld", words.iter().map(|word| (*word).to_owned()), look)
}

fn options(words: &[&str]) -> Options {
    match request(words, &[]) {
        Request::Run(options, notes) if notes.is_empty() => *options,
        other => panic!("{words:?}: {other:?}"),
    }
}

fn mistake(words: &[&str]) -> String {
    match request(words, &[]) {
        Request::Usage(text) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// flannel.md section 1.3.
#[test]
fn every_default_of_the_table_is_a_value_and_names_are_unique() {
    let mut names = BTreeSet::new();
    for flag in FLAGS {
        assert!(names.insert(flag.name), "{} is there twice", flag.name);
        if !flag.default.is_empty() {
            (flag.set)(&mut Options::empty(), flag.default).unwrap();
        }
    }
    let defaults = options(&[]);
    assert_eq!(defaults.etcd_endpoints, "http://127.0.0.1:4001,http://127.0.0.1:2379");
    assert_eq!(defaults.etcd_prefix, "/coreos.com/network");
    assert_eq!(defaults.subnet_file, PathBuf::from("/run/flannel/subnet.env"));
    assert_eq!((defaults.renew_margin_min, defaults.resync_s, defaults.healthz_port), (60, 5, 0));
    assert!(defaults.forward_rules && defaults.set_node_network_unavailable && !defaults.ip_masq);
    assert_eq!((defaults.firewall(), defaults.lease_lost), (FirewallKind::Nft, LeaseLost::Exit));
}

/// The published v0.10.0 walk-through's set, flannel.md section 1.3.
#[test]
fn the_whole_set_of_v0_10_0_is_accepted() {
    let read = options(&[
        "-etcd-endpoints=http://10.0.0.1:2379",
        "-etcd-prefix=/x",
        "-etcd-keyfile=k",
        "-etcd-certfile=c",
        "-etcd-cafile=a",
        "-etcd-username=u",
        "-etcd-password=p",
        "-iface=eth0",
        "-iface-regex=^10",
        "-subnet-file=/tmp/s",
        "-public-ip=1.2.3.4",
        "-subnet-lease-renew-margin=30",
        "-ip-masq",
        "-kube-subnet-mgr",
        "-kube-api-url=u",
        "-kubeconfig-file=f",
        "-healthz-ip=127.0.0.1",
        "-healthz-port=8081",
        "-v=4",
        "-vmodule=main=2,vxlan*=3",
        "-log_backtrace_at=main.go:12",
    ]);
    assert!(read.ip_masq && read.kube_subnet_mgr);
    assert_eq!((read.renew_margin_min, read.healthz_port, read.verbosity), (30, 8081, 4));
    assert!(!format!("{read:?}").contains("Secret(\"p"), "{read:?}");
    assert_eq!(read.etcd_password.reveal(), "p");
}

/// flannel.md section 1.1.
#[test]
fn one_dash_or_two_a_value_behind_or_after_the_equals_sign() {
    for words in [
        &["-iface", "eth1", "--public-ip=10.0.0.1", "-ip-masq=T"][..],
        &["--iface=eth1", "-public-ip", "10.0.0.1", "--ip-masq"],
    ] {
        let read = options(words);
        assert_eq!(
            (read.iface.as_slice(), read.public_ip.as_str(), read.ip_masq),
            (&["eth1".to_owned()][..], "10.0.0.1", true)
        );
    }
    assert!(!options(&["-ip-masq", "-ip-masq=0"]).ip_masq, "the last one wins");
    assert_eq!(options(&["-iface=a", "-iface-regex=x", "-iface=b"]).iface, ["a", "b"]);
    assert_eq!(options(&["-subnet-lease-renew-margin", "0x1e"]).renew_margin_min, 30);
    assert_eq!(options(&["-etcd-prefix=", "-v=1"]).etcd_prefix, "");
    assert_eq!(options(&["-etcd-prefix=a=b"]).etcd_prefix, "a=b");
}

/// flannel.md section 1.1.
#[test]
fn parsing_stops_at_the_first_word_that_is_not_a_flag() {
    for words in [
        &["-v=1", "word", "-v=2"][..],
        &["-v=1", "--", "-v=2"],
        &["-v=1", "-", "-v=2"],
        &["-v=1", "", "-v=2"],
    ] {
        assert_eq!(options(words).verbosity, 1, "{words:?}");
    }
    // A boolean takes no value from the next word, which then ends the flags.
    let read = options(&["-ip-masq", "false", "-v=2"]);
    assert!(read.ip_masq && read.verbosity == 0);
}

/// flannel.md sections 1.1 and 10.
#[test]
fn t18_help_and_mistakes_are_answered_with_usage() {
    for help in ["-h", "--help", "-help"] {
        assert!(mistake(&[help]).starts_with("Usage: flanneld [OPTION]...\n"), "{help}");
    }
    for (words, reason) in [
        (
            &["-subnet-lease-renew-margin=abc"][..],
            "invalid value \"abc\" for flag -subnet-lease-renew-margin: parse error",
        ),
        (&["-nonsense"], "flag provided but not defined: -nonsense"),
        (&["-iface"], "flag needs an argument: -iface"),
        (&["-ip-masq=maybe"], "invalid value \"maybe\" for flag -ip-masq: parse error"),
        (&["---v"], "bad flag syntax: ---v"),
        (&["-=1"], "bad flag syntax: -=1"),
        (&["-healthz-port", "99999999999999999999"], "value out of range"),
        (&["-etcd-api=v4"], "it must be v2 or v3"),
        (&["-vmodule=main"], "filename=N"),
    ] {
        let text = mistake(words);
        assert!(text.lines().next().unwrap().contains(reason), "{words:?}: {text}");
        assert!(text.contains("  -etcd-endpoints string\n    \t"), "{text}");
    }
    // 0, 1440 and -5 are numbers: `run` refuses them later, with exit code 1.
    assert_eq!(options(&["-subnet-lease-renew-margin=-5"]).renew_margin_min, -5);
}

/// flannel.md section 1.2.
#[test]
fn the_environment_sets_flags_that_were_not_given() {
    let environment = [
        ("FLANNELD_IFACE", "eth1,eth2"),
        ("FLANNELD_ETCD_PREFIX", "/env"),
        ("FLANNELD_PUBLIC_IP", ""),
        ("FLANNELD_IP_MASQ", "true"),
        ("FLANNELD_V", "2"),
        ("FLANNELD_VMODULE", "x=1"),
        ("FLANNELD_HEALTHZ_PORT", "many"),
        ("FLANNELD_ETCD_PASSWORD_FILE", "/etc/flanneld/password"),
    ];
    let Request::Run(read, notes) = request(&["-etcd-prefix=/word", "-ip-masq=false"], &environment) else {
        panic!()
    };
    assert_eq!(read.iface, ["eth1,eth2"], "no splitting");
    assert_eq!((read.etcd_prefix.as_str(), read.ip_masq, read.verbosity), ("/word", false, 2));
    assert_eq!(read.etcd_password_file, PathBuf::from("/etc/flanneld/password"));
    assert_eq!(read.healthz_port, 0, "an unusable value leaves the default");
    assert!(read.ip_masq_given && !options(&["-v=1"]).ip_masq_given);
    assert_eq!(notes, ["FLANNELD_HEALTHZ_PORT=many is ignored: parse error"]);
    assert_eq!(request(&[], &[("FLANNELD_VERSION", "1")]), Request::Version);
    assert_eq!(request(&["-version"], &[]), Request::Version);
}

#[test]
fn the_users_page_lists_every_flag_with_default_and_origin() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flanneld.md")).unwrap();
    for flag in FLAGS {
        let default = match flag.default {
            "" => "none".to_owned(),
            default => format!("`{}`", default.replace(',', "`, `")),
        };
        let origin = match flag.origin {
            Origin::V010 => "flannel, v0.10.0 and newer",
            Origin::Newer => "flannel, newer",
            Origin::Dropped => "flannel, v0.21 to v0.22",
            Origin::Ours => "**Russet only**",
        };
        let row = format!("| `{}` | {default} | {origin} | {} |", flag.name, flag.help);
        assert!(page.contains(&row), "docs/flanneld.md lacks the row\n{row}");
    }
}
