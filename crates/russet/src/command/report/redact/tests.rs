use super::*;

fn redacted(text: &str) -> String {
    Redactor::default().text(text)
}

#[test]
fn values_of_secret_names_are_removed_in_every_notation() {
    for (text, clean) in [
        ("etcd_password = \"hunter2\"", "etcd_password = \"[removed]\""),
        ("ETCD_PASSWORD=hunter2 next", "ETCD_PASSWORD=[removed] next"),
        ("--etcd-password hunter2 --x", "--etcd-password [removed] --x"),
        ("--etcd-password=hunter2 --x", "--etcd-password=[removed] --x"),
        ("{\"token\":\"a,b\",\"x\":1}", "{\"token\":\"[removed]\",\"x\":1}"),
        (
            "msg=\"{\\\"token\\\":\\\"ab\\\",\\\"x\\\":1}\"",
            "msg=\"{\\\"token\\\":\\\"[removed]\\\",\\\"x\\\":1}\"",
        ),
        ("password: Some(\"a b\"), x", "password: [removed], x"),
        ("secrets: [\"a\", \"b\"]\n", "secrets: [removed]\n"),
        ("password: 'open a b", "password: '[removed]"),
        ("clientSecret='it''s'", "clientSecret='[removed]'"),
        ("Authorization: Basic dXNlcjpwYXNz and more\nnext", "Authorization: [removed]\nnext"),
        ("\"Authorization\": \"Bearer abc def\" x", "\"Authorization\": \"[removed]\" x"),
    ] {
        assert_eq!(redacted(text), clean, "{text}");
    }
}

#[test]
fn what_is_no_secret_stays() {
    for text in [
        "etcd_password_file = \"/etc/russet/password\"",
        "give --etcd-password-file to the agent",
        "automountServiceAccountToken: true",
        "russet_tokens_total{kind=\"a\"} 5",
        "the secret of success",
        "password: \"\"",
        "from flag --etcd-key-file, node_name = \"a\"",
        "http://10.0.0.1:2379,http://10.0.0.2:2379 by a@b",
        "bearer of news",
        "certificate-authority-data: LS0t",
        "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web",
        "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n",
    ] {
        assert_eq!(redacted(text), text);
    }
}

#[test]
fn credentials_are_known_by_their_form() {
    for (text, clean) in [
        ("get https://me:pa@ss@10.0.0.1:2379/v3 failed", "get https://[removed]@10.0.0.1:2379/v3 failed"),
        ("a http://t0ken@h, http://u:p@i", "a http://[removed]@h, http://[removed]@i"),
        ("sent BEARER abcdefgh.1-2_3= ok", "sent BEARER [removed] ok"),
        ("got eyJhbGciOi.eyJpc3Mi.c2ln-_ today", "got eyJ[removed] today"),
        (
            "CNI_ARGS=\"IgnoreUnknown=1;K8S_POD_NAME=web;OTHER=x y\" z",
            "CNI_ARGS=\"IgnoreUnknown=1;K8S_POD_NAME=web;[removed]=[removed]\" z",
        ),
    ] {
        assert_eq!(redacted(text), clean, "{text}");
    }
}

#[test]
fn private_keys_are_removed_whole_and_cut() {
    let key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\nEEII/+==\n-----END EC PRIVATE KEY-----";
    for (text, clean) in [
        (format!("a\n{key}\nb"), "a\n[removed]\nb".to_owned()),
        (format!("{key} {key}"), "[removed] [removed]".to_owned()),
        (key.replace('\n', "\\n"), "[removed]".to_owned()),
        ("a -----BEGIN PRIVATE KEY-----\nMHcC".to_owned(), "a [removed]".to_owned()),
        (
            "cut here: MHcC\nEEII/+==\n-----END PRIVATE KEY-----\nb".to_owned(),
            "cut here: [removed]\nb".to_owned(),
        ),
        ("of a PRIVATE KEY----- only".to_owned(), "of a PRIVATE KEY----- only".to_owned()),
    ] {
        assert_eq!(redacted(&text), clean, "{text}");
    }
}

#[test]
fn known_secrets_are_removed_wherever_they_are_the_longest_first() {
    let redactor = Redactor::new(["hunter2", "hunter2-and-more", "hunter2"].map(str::to_owned));
    assert_eq!(redactor.known(), 2);
    assert_eq!(redactor.text("xhunter2-and-morex hunter2\n"), "x[removed]x [removed]\n");
}

#[test]
fn json_stays_json_and_loses_values_of_every_type() {
    let redactor = Redactor::new(["deep\"secret".to_owned()]);
    let text = r#"{"b": 18446744073709551615, "a": {"k8s_auth_token": "x", "secrets": [1, {"y": 2}], "tokenFile": "/t"},
        "list": ["see deep\"secret", "http://u:p@h/"], "password": 1234, "token": true, "secret": null}"#;
    let clean: Value = serde_json::from_str(&redactor.json(text).unwrap()).unwrap();
    let expected = serde_json::json!({"b": 18446744073709551615_u64,
        "a": {"k8s_auth_token": REMOVED, "secrets": REMOVED, "tokenFile": "/t"},
        "list": ["see [removed]", "http://[removed]@h/"], "password": REMOVED, "token": true, "secret": null});
    assert_eq!(clean, expected);
    assert_eq!(redactor.json("{\"a\":"), None);
}

#[test]
fn names_of_files_differ_from_names_of_secrets() {
    for name in ["etcd_key_file", "tokenFile", "client-key", "RUSSET_ETCD_PASSWORD_FILE"] {
        assert!(is_secret_file_name(name) && !is_secret_name(name), "{name}");
    }
    for name in ["k8s_auth_token", "client-key-data", "etcdKey", "ETCD_PASSWORD"] {
        assert!(is_secret_name(name) && !is_secret_file_name(name), "{name}");
    }
    for name in ["etcd_cert_file", "store", "key", "certificate-authority"] {
        assert!(!is_secret_name(name) && !is_secret_file_name(name), "{name}");
    }
}
