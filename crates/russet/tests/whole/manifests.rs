//! The manifests in packaging/kubernetes over real API servers: they can be applied, and give each account its rights and no others (kubernetes.md section 5).

mod leave;
mod limits;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use russet_kube::yaml;
use russet_testkit::kubernetes::{ApiServer, Options, Release, require_program};
use russet_testkit::{eventually, run};
use serde_json::{Value, json};

const NAMESPACE: &str = "russet-system";
const MANIFESTS: [&str; 4] = ["russet", "russet-flannel", "russet-calico", "russet-uninstall"];
/// Policies are in force a moment after they are applied.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An API server, and kubectl for it.
struct Cluster {
    server: ApiServer,
    kubeconfig: PathBuf,
}

fn packaging(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes");
    directory.join(name).canonicalize().unwrap().display().to_string()
}

// === impl Cluster ===

impl Cluster {
    fn new(release: Release) -> Self {
        let server = Options::new(release).start();
        let kubeconfig = server.admin_kubeconfig();
        Self { server, kubeconfig }
    }

    /// With russet.yaml, whose definitions are served, and a node for each name.
    fn with_russet(release: Release, nodes: &[&str]) -> Self {
        let cluster = Self::new(release);
        cluster.kubectl(&["apply", "-f", &packaging("russet.yaml")]);
        // Requests are answered with 404, and then with 429, for a moment.
        let kinds = ["ipamblocks", "blockaffinities", "ipamhandles", "ippools", "clusterinformations"];
        let is_served = |kind: &&str| {
            let path = format!("/apis/crd.projectcalico.org/v1/{kind}");
            cluster.server.request("GET", &path, &Value::Null).0 == 200
        };
        eventually(TIMEOUT, || kinds.iter().all(is_served));
        let node = |name: &&str| json!({ "kind": "Node", "metadata": { "name": name } });
        cluster.server.create(&nodes.iter().map(node).collect::<Vec<_>>());
        cluster
    }

    #[track_caller]
    fn kubectl(&self, args: &[&str]) -> String {
        let kubectl = Release::Newest.program("kubectl");
        let config = format!("--kubeconfig={}", self.kubeconfig.display());
        run(kubectl.to_str().unwrap(), &[&[config.as_str()], args].concat())
    }
}

#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn the_newest_api_server_accepts_every_manifest() {
    every_manifest_is_accepted(Release::Newest);
}

#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn an_older_api_server_accepts_every_manifest() {
    every_manifest_is_accepted(Release::Older);
}

fn every_manifest_is_accepted(release: Release) {
    let cluster = Cluster::new(release);
    for manifest in MANIFESTS {
        let file = packaging(&format!("{manifest}.yaml"));
        // A dry run makes no namespace for the objects that follow.
        cluster.kubectl(&["apply", "--validate=strict", "-f", &file]);
        let dry = cluster.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", &file]);
        assert!(!dry.contains("created"), "{dry}");
        let again = cluster.kubectl(&["apply", "--validate=strict", "-f", &file]);
        // Policies are sent again with their defaults, which restarts nothing.
        let restarts = |line: &&str| {
            ["daemonset", "deployment", "configmap"].iter().any(|kind| line.starts_with(kind))
                && !line.ends_with("unchanged")
        };
        let changed: Vec<&str> = again.lines().filter(restarts).collect();
        assert!(changed.is_empty(), "{changed:?}");
    }
    // Expressions are checked for the types of the kinds that they match.
    let policies = cluster.kubectl(&["get", "validatingadmissionpolicies", "-o", "json"]);
    let policies: Value = serde_json::from_str(&policies).unwrap();
    assert_eq!(policies["items"].as_array().unwrap().len(), 6);
}

#[test]
#[ignore = "tool: helm"]
fn helm_renders_the_same_objects() {
    let helm = require_program("helm", "helm");
    for (manifest, mode, namespace) in [
        ("russet", "vxlan", NAMESPACE),
        ("russet-flannel", "flannel", "kube-flannel"),
        ("russet-calico", "calico", NAMESPACE),
    ] {
        let mode = format!("--set=mode={mode}");
        let mut command = Command::new(&helm);
        command.args([
            "template",
            "russet",
            &packaging("chart"),
            "--kube-version=1.37.0",
            "--namespace",
            namespace,
        ]);
        let rendered = command.args(["--set=createNamespace=true", &mode]).output().unwrap();
        assert!(rendered.status.success(), "{rendered:?}");
        let ours = std::fs::read_to_string(packaging(&format!("{manifest}.yaml"))).unwrap();
        // The chart leaves the definitions out, because Helm does not upgrade them.
        let is_definition = |object: &Value| object["kind"] == "CustomResourceDefinition";
        let ours = objects(&ours).into_iter().filter(|object| !is_definition(object)).collect::<Vec<_>>();
        let theirs = objects(&String::from_utf8(rendered.stdout).unwrap());
        assert_eq!(ours.len(), theirs.len(), "{manifest}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{manifest}");
        }
    }
}

/// The objects of a file, in an order that does not depend on the file's.
fn objects(text: &str) -> Vec<Value> {
    let mut objects: Vec<Value> =
        yaml::documents(text.as_bytes()).unwrap().into_iter().map(|it| it.value).collect();
    let key = |object: &Value| {
        ["/kind", "/metadata/namespace", "/metadata/name"]
            .map(|path| object.pointer(path).map(Value::to_string))
    };
    objects.sort_by_key(key);
    objects
}
