use super::*;
use crate::{Call, code};

const ADD: &[(&str, &str)] = &[
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/run/netns/c1"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin"),
];

fn run(base: &[(&str, &str)], more: &[(&str, &str)], stdin: &str) -> Result<Prepared, CniError> {
    let vars = base.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    prepare(vars, stdin.as_bytes().to_vec(), "CNI russet plugin")
}

fn code_of(base: &[(&str, &str)], more: &[(&str, &str)], stdin: &str) -> u32 {
    run(base, more, stdin).unwrap_err().code
}

const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"n","type":"russet"}"#;

#[test]
fn a_plugin_run_by_hand_prints_the_about_text() {
    // cni-runtime.md section 6.2 item 1
    for vars in [&[][..], &[("CNI_COMMAND", "")]] {
        let Ok(Prepared::Answer(outcome)) = run(vars, &[], "") else { panic!() };
        assert!(outcome.stdout.is_empty() && outcome.is_success());
        assert!(outcome.stderr.starts_with("CNI russet plugin\n") && outcome.stderr.contains("1.1.0"));
    }
}

#[test]
fn version_lists_seven_versions_and_echoes_the_callers() {
    // cni-runtime.md section 6.2 item 9
    let ask = |stdin| match run(&[("CNI_COMMAND", "VERSION")], &[], stdin) {
        Ok(Prepared::Answer(outcome)) => serde_json::from_slice::<Value>(&outcome.stdout).unwrap(),
        other => panic!("{other:?}"),
    };
    let document = ask(r#"{"cniVersion":"0.4.0"}"#);
    let versions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    assert_eq!(document, serde_json::json!({"cniVersion": "0.4.0", "supportedVersions": versions}));
    for strange in ["", "{bad", "{\"cniVersion\":\"9.9.9\"}", "[]", "{\"cniVersion\":7}"] {
        assert_eq!(ask(strange)["cniVersion"], "1.1.0", "{strange}");
    }
}

#[test]
fn checks_come_in_skels_order() {
    // cni-runtime.md section 1.5: variables 4, stdin 5, JSON 6, name 7, version 1, then the values
    let huge = format!("{{\"name\":\"{}\"}}", "n".repeat(STDIN_MAX_BYTES));
    let bad = [("CNI_IFNAME", "a/b")];
    assert_eq!(code_of(&[("CNI_COMMAND", "ADD")], &[], &huge), code::ENVIRONMENT);
    assert_eq!(code_of(ADD, &bad, &huge), code::IO);
    assert_eq!(code_of(ADD, &bad, "{bad"), code::DECODING);
    assert_eq!(code_of(ADD, &bad, r#"{"cniVersion":"9.9.9"}"#), code::INVALID_CONFIG);
    assert_eq!(code_of(ADD, &bad, r#"{"cniVersion":"9.9.9","name":"n"}"#), code::INCOMPATIBLE_VERSION);
    assert_eq!(code_of(ADD, &bad, CONFIG), code::ENVIRONMENT);
    let Ok(Prepared::Request(request)) = run(ADD, &[], CONFIG) else { panic!() };
    assert!(matches!(request.env.call, Call::Add(_)));
    assert_eq!(request.stdin, CONFIG.as_bytes());
}

#[test]
fn verbs_that_the_version_does_not_have_fail_with_code_1() {
    // cni-runtime.md section 6.2 item 8
    let old = r#"{"cniVersion":"0.3.1","name":"n"}"#;
    assert_eq!(code_of(ADD, &[("CNI_COMMAND", "CHECK")], old), code::INCOMPATIBLE_VERSION);
    for verb in ["GC", "STATUS"] {
        let vars = [("CNI_COMMAND", verb), ("CNI_PATH", "/opt/cni/bin")];
        let error = run(&vars, &[], r#"{"cniVersion":"1.0.0","name":"n"}"#).unwrap_err();
        assert_eq!((error.code, error.cni_version.as_str()), (code::INCOMPATIBLE_VERSION, "1.0.0"));
        assert!(run(&vars, &[], CONFIG).is_ok());
    }
}

#[test]
fn ten_megabytes_on_stdin_are_refused_with_the_limit() {
    let endless = std::io::repeat(b' ').take(10 * 1024 * 1024);
    let error = read_stdin(endless).unwrap_err();
    assert_eq!(error.code, code::IO);
    assert!(error.details.contains("1048576"), "{error}");
    assert_eq!(read_stdin(&b"{}"[..]), Ok(b"{}".to_vec()));
}

#[test]
fn every_truncation_of_a_request_is_an_error_and_no_panic() {
    let config = r#"{"cniVersion":"1.1.0","name":"n","prevResult":{"ips":[{"address":"10.1.2.3/24"}]}}"#;
    for end in 0..config.len() {
        assert_eq!(code_of(ADD, &[], &config[..end]), code::DECODING);
    }
}

#[test]
fn an_outcome_has_one_document_at_most() {
    // cni-runtime.md section 0 item 11
    let failure = Outcome::from(Err::<Option<CniResult>, _>(CniError::io("lost", "")));
    assert!(serde_json::from_slice::<Value>(&failure.stdout).is_ok() && failure.exit_code == 1);
    let result = CniResult::empty(Version::V1_0_0);
    assert_eq!(Outcome::from(Ok(Some(result))).stdout, br#"{"cniVersion":"1.0.0"}"#);
    assert_eq!(Outcome::from(Ok(None)), Outcome::default());
}
