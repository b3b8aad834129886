//! Images from a registry of the test's into a real containerd (cni-runtime.md section 3.1, `ensureSandboxImageExists`: pull if absent, trying each
//! credential, errors aggregated).

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::path::{Path, PathBuf};

use russet_containerd::{Client, Image, ImageError, Keyring, ensure};
use russet_testkit::containerd::{Answer, Containerd, Proxy};
use russet_testkit::registry::{Access, Asked, Registry};
use serde_json::json;

const NAMESPACE: &str = "russet-test";
const SNAPSHOTTER: &str = "overlayfs";
const IMAGES_GET: &str = "/containerd.services.images.v1.Images/Get";
const RIGHT: Access = Access::Basic("kubelet", "right");

/// Everything is read again, as by an engine.
fn ensure_over(socket: &Path, image: &str, files: &[PathBuf]) -> Result<Image, ImageError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(socket, NAMESPACE).await.unwrap();
        ensure(&client, &image.parse()?, SNAPSHOTTER, || Keyring::read(files)).await
    })
}

/// A file as written by `docker login`, for users with these passwords.
fn credentials(dir: &Path, name: &str, registry: &Registry, user: &str, password: &str) -> PathBuf {
    let entry = json!({ "username": user, "password": password });
    let auths = json!({ format!("http://{}", registry.address()): entry });
    let content = if name == ".dockercfg" { auths } else { json!({ "auths": auths }) };
    let file = dir.join(name);
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(&file, content.to_string()).unwrap();
    file
}

fn pause(registry: &Registry) -> String {
    registry.push("team/pause", "1", "busybox", &["sleep", "1000000"])
}

/// The state of the only image by containerd's own client.
#[track_caller]
fn assert_complete(containerd: &Containerd) {
    let output = containerd.ctr(NAMESPACE, &["images", "check"]);
    assert!(output.contains(" complete (") && !output.contains("incomplete"), "{output}");
}

fn statuses(asked: &[Asked]) -> Vec<(Option<&str>, u16)> {
    asked.iter().map(|it| (it.by.as_deref(), it.status)).collect()
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn an_image_that_is_there_is_not_pulled() {
    let (containerd, registry) = (Containerd::start(), Registry::start(Access::Open));
    let name = pause(&registry);
    let pulled = ensure_over(&containerd.socket(), &name, &[]).unwrap();
    assert!(
        statuses(&registry.asked()).iter().all(|asked| *asked == (None, 200)),
        "without credentials: anonymous"
    );
    assert_eq!(
        (pulled.name.as_str(), pulled.process.args.as_slice()),
        (name.as_str(), &["/busybox".into(), "sleep".into(), "1000000".into()][..])
    );
    let again = ensure_over(&containerd.socket(), &name, &[]).unwrap();
    assert_eq!((again, registry.asked()), (pulled.clone(), vec![]));

    // Nothing of it is collected: garbage collection follows a deletion.
    assert_complete(&containerd);
    containerd.ctr(NAMESPACE, &["images", "tag", &name, "other"]);
    containerd.ctr(NAMESPACE, &["images", "rm", "--sync", "other"]);
    assert_complete(&containerd);
    assert!(containerd.ctr(NAMESPACE, &["snapshots", "ls"]).contains(&pulled.snapshot));
    assert_eq!(containerd.ctr(NAMESPACE, &["leases", "ls", "-q"]), "");
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn an_image_that_another_client_brought_is_unpacked_and_not_pulled() {
    let (containerd, registry) = (Containerd::start(), Registry::start(Access::Open));
    let name = pause(&registry);
    containerd.ctr(NAMESPACE, &["content", "fetch", "--plain-http", &name]);
    assert!(!registry.asked().is_empty());
    let image = ensure_over(&containerd.socket(), &name, &[]).unwrap();
    assert_eq!(registry.asked(), []);
    assert!(containerd.ctr(NAMESPACE, &["snapshots", "ls"]).contains(&image.snapshot));
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn an_inspection_that_fails_is_an_error_and_no_pull() {
    let (containerd, registry) = (Containerd::start(), Registry::start(Access::Open));
    let name = pause(&registry);
    let proxy = Proxy::start(&containerd.socket());
    proxy.answer(&[Answer { call: IMAGES_GET, code: 13, message: "the disk is broken" }]);
    let error = ensure_over(&proxy.socket(), &name, &[]).unwrap_err();
    let says =
        format!("inspect image {name}: containerd, look for image {name}: Internal: the disk is broken");
    assert_eq!((error.to_string(), registry.asked(), proxy.unasked()), (says, vec![], 0));
    // "Not found" leads to a pull.
    ensure_over(&proxy.socket(), &name, &[]).unwrap();
    assert!(!registry.asked().is_empty());
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn without_a_credential_a_registry_is_accessed_anonymously() {
    let (containerd, registry) = (Containerd::start(), Registry::start(RIGHT));
    let (name, dir) = (pause(&registry), tempfile::tempdir().unwrap());
    let others = dir.path().join("config.json");
    std::fs::write(&others, r#"{"auths": {"quay.io": {"username": "kubelet", "password": "right"}}}"#)
        .unwrap();
    let error = ensure_over(&containerd.socket(), &name, &[others]).unwrap_err();
    let says = format!(
        "pull image {name}: anonymous: http://{}/v2/team/pause/manifests/1: 401 Unauthorized: it asks for a name and a password, and there are none for it",
        registry.address()
    );
    assert_eq!((error.to_string(), statuses(&registry.asked())), (says, vec![(None, 401)]));
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_wrong_and_then_a_right_credential_work() {
    for (access, sends_on) in [(RIGHT, false), (RIGHT, true), (Access::Bearer("kubelet", "right"), true)] {
        let (containerd, registry) = (Containerd::start(), Registry::start(access));
        let (name, dir) = (pause(&registry), tempfile::tempdir().unwrap());
        if sends_on {
            registry.send_on();
        }
        let wrong = credentials(dir.path(), "config.json", &registry, "kubelet", "wrong");
        let right = credentials(dir.path(), ".dockercfg", &registry, "kubelet", "right");
        ensure_over(&containerd.socket(), &name, &[wrong, right]).unwrap();
        let asked = registry.asked();
        let first = |by: &str| asked.iter().position(|asked| asked.by.as_deref() == Some(by)).unwrap();
        assert!(first("kubelet:wrong") < first("kubelet:right"), "{asked:?}");
        assert!(
            asked.iter().all(|asked| asked.by.as_deref() != Some("kubelet:wrong") || asked.status == 401)
        );
        assert_complete(&containerd);
    }
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn when_all_credentials_are_wrong_every_error_is_listed_without_a_password() {
    let (containerd, registry) = (Containerd::start(), Registry::start(RIGHT));
    let (name, dir) = (pause(&registry), tempfile::tempdir().unwrap());
    let files = [("config.json", "kubelet", "wrong-1"), (".dockercfg", "other", "wrong-2")];
    let files = files.map(|(file, user, password)| credentials(dir.path(), file, &registry, user, password));
    let error = ensure_over(&containerd.socket(), &name, &files).unwrap_err().to_string();
    let refusal = format!(
        "http://{}/v2/team/pause/manifests/1: 401 Unauthorized: it does not take these credentials",
        registry.address()
    );
    let [first, second] = files.map(|file| file.display().to_string());
    let says = format!(
        "pull image {name}: as \"kubelet\" of {first}: {refusal}; as \"other\" of {second}: {refusal}"
    );
    assert_eq!(error, says);
    let by = |by| (Some(by), 401);
    assert_eq!(
        statuses(&registry.asked()),
        [(None, 401), by("kubelet:wrong-1"), (None, 401), by("other:wrong-2")],
        "and no anonymous request follows"
    );
    assert_eq!(containerd.ctr(NAMESPACE, &["images", "ls", "-q"]), "");
}

#[test]
#[ignore = "root, tool: containerd, runc, ctr, busybox, tar, gzip"]
fn a_layer_with_a_wrong_digest_is_an_error() {
    let (containerd, registry) = (Containerd::start(), Registry::start(Access::Open));
    let name = pause(&registry);
    registry.damage_layers();
    let error = ensure_over(&containerd.socket(), &name, &[]).unwrap_err().to_string();
    assert!(error.contains("FailedPrecondition") && error.contains("unexpected commit digest"), "{error}");
    assert_eq!(containerd.ctr(NAMESPACE, &["images", "ls", "-q"]), "");
    let absent = format!("{}/team/absent:1", registry.address());
    let error = ensure_over(&containerd.socket(), &absent, &[]).unwrap_err().to_string();
    assert!(error.contains("status 404: {\\\"errors\\\"") && error.contains("MANIFEST_UNKNOWN"), "{error}");
    assert_eq!(containerd.ctr(NAMESPACE, &["leases", "ls", "-q"]), "");
}
