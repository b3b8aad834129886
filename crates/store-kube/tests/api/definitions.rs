//! The resource definitions in packaging/kubernetes/crds against what the engine writes.

use std::path::Path;

use russet_model::Key;
use russet_store::{Step, Store};
use serde_json::{Value, json};

use crate::bench::{Bench, block, count, handle, node};

fn definition(plural: &str) -> Value {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../packaging/kubernetes/crds/{plural}.yaml"));
    russet_kube::yaml::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The schema of `spec` in a definition.
fn schema(definition: &Value) -> &Value {
    definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap()
}

#[tokio::test]
async fn every_member_that_is_written_is_in_the_definitions_and_required_ones_are_written() {
    // kubernetes.md section 1.5
    let bench = Bench::new();
    let whole = json!({ "cidr": "10.1.0.16/29", "affinity": "host:node-a", "affinity_claim_time": "2026-01-02T03:00:00Z", "allocations": [null],
        "unallocated": [0], "attributes": [{ "handle_id": "net.a", "secondary": { "node": "n" }, "alternateOwnerAttrs": { "pod": "p" } }],
        "sequenceNumber": 7, "sequenceNumberForAllocation": { "0": 1 }, "deleted": false });
    let pool = json!({ "kind": "IPPool", "apiVersion": "projectcalico.org/v3", "metadata": { "name": "p", "creationTimestamp": null },
        "spec": { "cidr": "10.1.0.0/16", "blockSize": 26, "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true, "disabled": false,
            "disableBGPExport": false, "nodeSelector": "all()", "namespaceSelector": "all()", "allowedUses": ["Workload"], "assignmentMode": "Automatic" } });
    let config =
        r#"{"auto_allocate_blocks":true,"maxBlocksPerHost":2,"kubeVirtVMAddressPersistence":"Enabled"}"#;
    let steps = [
        Step::create(Key::block(block()), whole.to_string()),
        Step::create(Key::affinity(&node("node-a"), block()), r#"{"state":"pending","deleted":false}"#),
        Step::create(handle("net.a"), count(1)),
        Step::create(Key::ipam_config(), config),
        Step::create(Key::pool("p").unwrap(), pool.to_string()),
    ];
    bench.store.commit(steps.to_vec()).await.unwrap();
    for seen in bench.server.seen().iter().filter(|seen| seen.method == "POST") {
        let written: Value = serde_json::from_str(&seen.body).unwrap();
        let plural = seen.path.split('?').next().unwrap().rsplit('/').next().unwrap();
        let definition = definition(plural);
        assert_eq!(definition["metadata"]["name"], format!("{plural}.{}", bench.group));
        assert_eq!(definition["spec"]["names"]["kind"], written["kind"]);
        let schema = schema(&definition);
        let spec = written["spec"].as_object().unwrap();
        for name in spec.keys() {
            assert!(schema["properties"].get(name).is_some(), "{plural} lacks {name}");
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(spec.contains_key(name.as_str().unwrap()), "{plural} needs {name}");
        }
    }
}
