//! Files of credentials, and which of them are for an image.

use super::*;

fn users(keyring: &Keyring, image: &str) -> Vec<String> {
    keyring.matching(&image.parse().unwrap()).into_iter().map(|credential| credential.user).collect()
}

fn auth(user: &str) -> serde_json::Value {
    serde_json::json!({ "auth": STANDARD.encode(format!("{user}:secret of {user}")) })
}

fn write(dir: &Path, name: &str, content: &serde_json::Value) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, content.to_string()).unwrap();
    file
}

#[test]
fn every_credential_of_every_file_that_fits_is_found_longer_paths_first() {
    // cni-runtime.md section 3.1: trying each credential
    let dir = tempfile::tempdir().unwrap();
    let auths = serde_json::json!({ "auths": {
        "quay.io": auth("host"), "https://quay.io/v2/team": auth("team"), "other.io": auth("other"),
        "*.example.com:5000": auth("glob"), "https://index.docker.io/v1/": auth("hub"),
        "helper.io": {}, "plain.io": { "username": "plain", "password": "p" },
    }});
    let new = write(dir.path(), "config.json", &auths);
    let old = write(
        dir.path(),
        ".dockercfg",
        &serde_json::json!({ "quay.io": auth("old"), "bad.io": { "auth": "%" } }),
    );
    let keyring = Keyring::read(&[new.clone(), dir.path().join("absent"), old]);
    assert_eq!(users(&keyring, "quay.io/team/app"), ["team", "host", "old"]);
    assert_eq!(users(&keyring, "quay.io/else"), ["host", "old"]);
    assert_eq!(users(&keyring, "r.example.com:5000/a"), ["glob"]);
    assert_eq!(users(&keyring, "r.example.com/a"), [""; 0], "another port");
    assert_eq!(users(&keyring, "a.r.example.com:5000/a"), [""; 0], "a star is one part of a host");
    assert_eq!(
        (users(&keyring, "busybox"), users(&keyring, "helper.io/a")),
        (vec!["hub".to_owned()], vec![])
    );
    let plain = keyring.matching(&"plain.io/a".parse().unwrap());
    assert_eq!(plain, [Credential { user: "plain".into(), password: "p".into(), file: new }]);
    assert_eq!(plain[0].basic(), "Basic cGxhaW46cA==");
}

#[test]
fn a_damaged_file_hides_no_other_and_nothing_shows_a_password() {
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("config.json");
    std::fs::write(&damaged, "{\"auths\": {\"quay.io\": {\"password\": secret}}}").unwrap();
    let error = read(&damaged).map(drop).unwrap_err();
    assert_eq!(error, "no such JSON at line 1");
    let old = write(dir.path(), ".dockercfg", &serde_json::json!({ "quay.io": auth("old") }));
    let keyring = Keyring::read(&[damaged, old]);
    assert_eq!(users(&keyring, "quay.io/a"), ["old"]);
    assert!(!format!("{keyring:?}").contains("secret"), "{keyring:?}");
}

#[test]
fn the_usual_files_are_kubelets_then_dockers_then_those_of_the_old_format() {
    let files = files_of(Some(Path::new("/d")), Some(Path::new("/root")));
    let expected = [
        "/var/lib/kubelet/config.json",
        "/d/config.json",
        "/root/.docker/config.json",
        "/.docker/config.json",
        "/var/lib/kubelet/.dockercfg",
        "/root/.dockercfg",
        "/.dockercfg",
    ];
    assert_eq!(files, expected.map(PathBuf::from));
    assert_eq!(files_of(None, Some(Path::new("/"))).len(), 4, "none twice");
}

#[test]
fn patterns_match_as_those_of_shells_do() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("*", "abc", true),
        ("a*c", "abbc", true),
        ("a*c", "abb", false),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("*a*b", "xaxxb", true),
        ("*a*b", "xbxa", false),
        ("", "a", false),
        ("abc", "abc", true),
    ] {
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
    }
}
