//! Records of containers in a real containerd.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use russet_containerd::{Any, Client, Container, ContainerRuntime};
use russet_testkit::containerd::Containerd;

const NAMESPACE: &str = "russet-test";

#[test]
#[ignore = "root, tool: containerd, runc, ctr"]
fn a_list_of_containers_may_be_larger_than_grpcs_usual_limit() {
    let containerd = Containerd::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&containerd.socket(), NAMESPACE).await.unwrap();
        for n in 0..5 {
            // No process is made of it.
            let spec = Any { type_url: "test".to_owned(), value: vec![b' '; 1024 * 1024] };
            let labels = [("of".to_owned(), "the test".to_owned())].into();
            let runtime =
                Some(ContainerRuntime { name: "io.containerd.runc.v2".to_owned(), ..Default::default() });
            let id = format!("large-{n}");
            let container = Container { id, labels, runtime, spec: Some(spec), ..Default::default() };
            client.create_container(container).await.unwrap();
        }
        let listed = client.containers(r#"labels."of"=="the test""#).await.unwrap();
        assert_eq!(listed.len(), 5);
        for container in listed {
            assert!(client.delete_container(&container.id).await.unwrap());
        }
    });
}
