use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use russet_kube::testing::Server;
use russet_testkit::eventually;
use tokio::sync::oneshot;

use super::super::source::follow_cluster_policies;
use super::super::{Change, Policies, QUEUE_MAX, Shared, Source};
use super::*;

const GROUP: &str = "policy.networking.k8s.io";
const PLURAL: &str = "clusternetworkpolicies";
const TIMEOUT: Duration = Duration::from_secs(30);

/// What an agent does about ClusterNetworkPolicies, on a thread of its own.
struct Agent {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The changes that decisions would be made of.
    _changes: Receiver<Change>,
}

impl Agent {
    fn start(server: &Server) -> Self {
        let (changes, receiver) = sync_channel(QUEUE_MAX);
        let policies = Policies { shared: Arc::new(Shared::new(Source::Kubernetes)), changes };
        let client = client(server);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = follow_cluster_policies(&client, &policies) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { stop: Some(stop), thread: Some(thread), _changes: receiver }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn served() -> Server {
    let server = Server::start();
    server.install(GROUP);
    server
}

/// A client of a cluster with one node.
fn client(server: &Server) -> Client {
    let client = Client::new(server.source()).unwrap();
    client.note_nodes(1);
    client
}

/// A policy that allows egress to a peer.
fn policy(name: &str, generation: u64, peer: Value) -> Value {
    json!({ "apiVersion": format!("{GROUP}/v1alpha2"), "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name, "generation": generation },
        "spec": { "tier": "Admin", "priority": 1, "subject": { "namespaces": {} },
            "egress": [{ "action": "Accept", "to": [peer] }] } })
}

/// What Russet does not enforce.
fn by_names() -> Value {
    json!({ "domainNames": ["example.com"] })
}

fn by_nets() -> Value {
    json!({ "networks": ["192.0.2.0/24"] })
}

fn object(server: &Server, name: &str) -> Value {
    server.object("ClusterNetworkPolicy.policy.networking.k8s.io", "", name).unwrap()
}

/// Status and generation of the policy's condition.
fn condition(server: &Server, name: &str) -> Option<(String, u64)> {
    let condition = &object(server, name)["status"]["conditions"][0];
    Some((condition["status"].as_str()?.to_owned(), condition["observedGeneration"].as_u64()?))
}

fn patches(server: &Server) -> usize {
    server.seen().iter().filter(|seen| seen.method == "PATCH").count()
}

#[test]
fn a_policys_status_says_once_that_a_part_is_not_enforced_and_once_that_all_is() {
    let server = served();
    server.put(policy("names", 1, by_names()));
    server.put(policy("plain", 1, by_nets()));
    let _agent = Agent::start(&server);
    let is = |name: &str, status: &str, generation| {
        condition(&server, name) == Some((status.to_owned(), generation))
    };
    eventually(TIMEOUT, || is("names", "False", 1));

    // It is watched again, and there is nothing to write.
    let mut touched = object(&server, "names");
    touched["metadata"]["annotations"] = json!({ "a": "b" });
    server.put(touched);
    server.put(policy("other", 1, by_names()));
    eventually(TIMEOUT, || is("other", "False", 1));
    assert_eq!((patches(&server), condition(&server, "plain")), (2, None));

    let mut repaired = policy("names", 2, by_nets());
    repaired["status"] = object(&server, "names")["status"].clone();
    server.put(repaired);
    eventually(TIMEOUT, || is("names", "True", 2));
    assert_eq!(patches(&server), 3);

    // Another writer removes it from a policy that is not enforced.
    server.put(policy("other", 2, by_names()));
    eventually(TIMEOUT, || is("other", "False", 2));
}

#[tokio::test]
async fn a_policy_that_another_writer_changes_meanwhile_is_read_again_and_no_second_agent_writes() {
    let server = served();
    server.put(policy("p", 1, by_names()));
    let (one, two) = (Conditions::new(client(&server)), Conditions::new(client(&server)));
    server.overtake_next(PLURAL, 1);
    let written = one.write("p").await;
    assert!(matches!(written, Outcome::Written), "{written:?}");
    let found = object(&server, "p");
    assert!(found["metadata"]["annotations"]["example.com/touched"].is_string(), "{found}");
    assert_eq!((patches(&server), condition(&server, "p")), (2, Some(("False".to_owned(), 1))));
    assert!(matches!(two.write("p").await, Outcome::Nothing));
    assert!(matches!(two.write("absent").await, Outcome::Nothing));
    assert_eq!(patches(&server), 2);

    server.put(policy("busy", 1, by_names()));
    server.overtake_next(PLURAL, TRIES);
    let overtaken = two.write("busy").await;
    assert!(matches!(overtaken, Outcome::Later(KubeError::Conflict(_))), "{overtaken:?}");
    assert!(matches!(two.write("busy").await, Outcome::Written));
}

#[tokio::test]
async fn without_the_right_or_the_subresource_the_status_is_left_alone_for_an_hour() {
    for (has_right, expected) in [(false, 1), (true, TRIES)] {
        let server = served();
        match has_right {
            false => server.forbid("patch clusternetworkpolicies/status"),
            true => server.undefine("clusternetworkpolicies/status"),
        }
        let conditions = Conditions::new(client(&server));
        for name in ["a", "b"] {
            let policy = policy(name, 1, by_names());
            server.put(policy.clone());
            conditions.see(&Piece::Changed(policy));
        }
        let start = Instant::now();
        let refused = async {
            while !conditions.is_refusal_logged.get() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = conditions.run() => {}
            done = tokio::time::timeout(TIMEOUT, refused) => done.unwrap(),
        }
        assert_eq!(patches(&server), expected);
        assert!(conditions.next().unwrap().0 >= start + REFUSED_PAUSE, "both wait");

        let server = served();
        server.put(policy("a", 1, by_names()));
        let conditions = Conditions { client: client(&server), ..conditions };
        let written = conditions.write("a").await;
        conditions.note("a", written);
        assert!(!conditions.is_refusal_logged.get(), "the next refusal is logged again");
    }
}
