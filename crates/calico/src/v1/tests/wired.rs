//! ADD, CHECK and DEL with real namespaces and a real etcd that serves the v2 API.

use russet_linux::NetNs;
use russet_testkit::etcd::Cluster;
use russet_testkit::{in_netns_with_loopback, run as tool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A node on an etcd with one v1 pool.
struct V1Cluster {
    cluster: Cluster,
    node: CalicoNode,
}

impl V1Cluster {
    async fn new(pool: bool) -> Self {
        let cluster = Cluster::start(1, "http", |_| vec!["--enable-v2".to_owned()], Vec::new());
        let cluster_v1 = Self { cluster, node: node(&Rc::new(Sim::atomic(1))) };
        if pool {
            let pool = russet_model::v1::Pool::new("10.1.0.0/24".parse().unwrap());
            cluster_v1.put(V1Key::Pool(pool.cidr).key(), pool.encode()).await;
        }
        cluster_v1
    }

    fn v2(&self) -> EtcdV2 {
        EtcdV2::connect(self.settings()).unwrap()
    }

    fn settings(&self) -> EtcdSettings {
        EtcdSettings::for_endpoints(&self.cluster.members[0].client).unwrap()
    }

    async fn put(&self, key: Key, value: impl Into<Vec<u8>>) {
        self.v2().commit(vec![Step::put(key, value)]).await.unwrap();
    }

    /// A request with a configuration of v1.11, that is, without `datastore_type`. Only its version
    /// is newer, because of CHECK.
    fn request(&self, verb: &str, container: &str, pod: Option<&str>, more: &str) -> Request {
        let config = format!(
            r#"{{"cniVersion":"0.4.0","name":"net1","type":"calico","nodename":"n1","etcd_endpoints":"http://{}","log_level":"info","ipam":{{"type":"calico-ipam"}}{more}}}"#,
            self.cluster.members[0].client
        );
        let args = pod.map(|pod| format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}"));
        let netns = format!("/run/netns/{container}");
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", &netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/"),
            ("CNI_ARGS", args.as_deref().unwrap_or_default()),
        ];
        Request::new(vars, config.into_bytes()).unwrap()
    }

    /// Runs the `calico` plugin with such a configuration.
    async fn call(&self, verb: &str, container: &str, pod: Option<&str>) -> Result<Vec<String>, CniError> {
        let request = self.request(verb, container, pod, "");
        let conf = conf(&request);
        let DataModel::V1(etcd) = choose(&conf).await? else { panic!("the v1 data are meant") };
        let log = RequestLog::new("calico");
        let result = super::super::run(&self.node, &request, &conf, *etcd, &log).await?;
        Ok(result
            .map(|result| result.ips.iter().map(|ip| ip.address.to_string()).collect())
            .unwrap_or_default())
    }

    async fn add(&self, container: &str, pod: Option<&str>) -> String {
        self.call("ADD", container, pod).await.unwrap().remove(0)
    }

    async fn keys(&self, prefix: &str) -> Vec<String> {
        let listed = self.v2().list(&Prefix::from_stored(prefix)).await.unwrap();
        listed.records.into_iter().map(|record| record.key.to_string()).collect()
    }
}

fn inside(container: &str, arguments: &[&str]) -> String {
    tool("ip", &[&["-n", container], arguments].concat())
}

fn in_namespaces(test: impl AsyncFnOnce() + Send) {
    in_netns_with_loopback(|| {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
}

#[test]
#[ignore = "root: makes network namespaces; kernel: veth; tool: etcd, ip"]
fn an_unchanged_configuration_of_v1_11_works_on_its_v2_data() {
    in_namespaces(async || {
        let cluster_v1 = V1Cluster::new(true).await;
        for container in ["web", "again", "plain"] {
            NetNs::create_named(container).unwrap();
        }
        let address = cluster_v1.add("web", Some("web-0")).await;
        assert!(address.starts_with("10.1.0.") && address.ends_with("/32"), "{address}");
        assert!(inside("web", &["address", "show", "dev", "eth0"]).contains(&address));
        // calico-cni.md section 3.1: the name that peers give this pod's host interface.
        assert!(tool("ip", &["route"]).contains("calia4fc3c48bd8"), "{}", tool("ip", &["route"]));
        cluster_v1.call("CHECK", "web", Some("web-0")).await.unwrap();
        let endpoint = "/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/eth0";
        assert_eq!(cluster_v1.keys("/calico/v1/host/").await, [endpoint]);

        // The same pod in another sandbox has the same address (calico-cni.md oracle 56); the interface is the
        // new sandbox's.
        assert_eq!(cluster_v1.add("again", Some("web-0")).await, address);
        assert!(inside("again", &["address", "show", "dev", "eth0"]).contains(&address));
        cluster_v1.call("DEL", "web", Some("web-0")).await.unwrap();
        assert!(inside("again", &["address", "show", "dev", "eth0"]).contains(&address), "it is still there");
        cluster_v1.call("CHECK", "again", Some("web-0")).await.unwrap();

        let other = cluster_v1.add("plain", None).await;
        assert_ne!(other, address);
        for (container, pod) in [("again", Some("web-0")), ("again", Some("web-0")), ("plain", None)] {
            cluster_v1.call("DEL", container, pod).await.unwrap();
        }
        assert_eq!(cluster_v1.keys("/calico/v1/host/").await, [""; 0]);
        assert_eq!(cluster_v1.keys("/calico/ipam/v2/handle/").await, [""; 0]);
        assert!(!tool("ip", &["link"]).contains("cali"));
        // Nothing was written behind the v3 API.
        assert_eq!(
            cluster_v1.cluster.members[0].etcdctl(&["get", "/", "--prefix", "--keys-only"]).trim(),
            ""
        );
    });
}

#[test]
#[ignore = "root: makes network namespaces; kernel: veth; tool: etcd, ip"]
fn without_v1_data_the_error_names_the_migration_and_nothing_is_written() {
    in_namespaces(async || {
        let cluster_v1 = V1Cluster::new(false).await;
        NetNs::create_named("web").unwrap();
        for verb in ["ADD", "DEL"] {
            let error = cluster_v1.call(verb, "web", Some("web-0")).await.unwrap_err();
            assert!(error.details.contains("russet migrate calico-v1"), "{verb}: {error:?}");
        }
        assert_eq!(cluster_v1.keys("/").await, [""; 0]);
        assert_eq!(
            cluster_v1.cluster.members[0].etcdctl(&["get", "/", "--prefix", "--keys-only"]).trim(),
            ""
        );
    });
}

#[test]
#[ignore = "root: makes network namespaces; kernel: veth; tool: etcd, ip"]
fn v3_data_take_precedence_and_an_explicit_v1_type_is_refused() {
    in_namespaces(async || {
        let cluster_v1 = V1Cluster::new(true).await;
        let pool = "/calico/resources/v3/projectcalico.org/ippools/p";
        cluster_v1.cluster.members[0].etcdctl(&["put", pool, "{}"]);
        let request = cluster_v1.request("ADD", "web", None, "");
        assert!(matches!(choose(&conf(&request)).await.unwrap(), DataModel::V3));
        let request = cluster_v1.request("ADD", "web", None, r#","datastore_type":"etcdv2""#);
        let error = choose(&conf(&request)).await.unwrap_err();
        assert!(
            error.details.contains("russet migrate calico-v1") && error.msg.contains("twice"),
            "{error:?}"
        );
    });
}

/// A proxy that looks like an etcd 2: it reports version 2, closes HTTP/2 connections, and forwards
/// all other requests to `member`.
async fn etcd_2(member: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let member = member.clone();
            tokio::spawn(async move {
                let mut head = [0; 16];
                let read = client.read(&mut head).await.unwrap_or(0);
                if head.starts_with(b"PRI ") {
                    return;
                }
                if head.starts_with(b"GET /version") {
                    let body = r#"{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}"#;
                    let length = body.len();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                    );
                    let _ = client.write_all(answer.as_bytes()).await;
                    return;
                }
                let mut server = TcpStream::connect(member).await.unwrap();
                server.write_all(&head[..read]).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn an_etcd_2_has_no_v3_api_and_a_newer_one_that_does_not_answer_may_have_data() {
    in_namespaces(async || {
        let mut cluster_v1 = V1Cluster::new(true).await;
        let address = etcd_2(cluster_v1.cluster.members[0].client.clone()).await;
        let settings = EtcdSettings::for_endpoints(&address).unwrap();
        for named in [false, true] {
            assert!(choice::decide(&settings, named).await.unwrap(), "the v1 data are meant");
        }
        // A stopped member of etcd 3 may have any data.
        cluster_v1.cluster.members[0].kill();
        let settings = EtcdSettings { deadline: std::time::Duration::from_secs(1), ..cluster_v1.settings() };
        for named in [false, true] {
            let error = choice::decide(&settings, named).await.unwrap_err();
            assert_eq!(error.code, russet_cni_spec::code::TRY_AGAIN_LATER, "{error:?}");
        }
    });
}
