//! DEL with a configuration that names no IPAM plugin, as after an operator's edit (calico-cni.md
//! section 3.6).

use super::*;

#[test]
fn del_without_ipam_releases_addresses_of_calico_ipam() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        for ask in [Ask::pod("c1", "mypod"), Ask::container("c1")] {
            stage.add(&ask).await.unwrap();
            assert_eq!(stage.held("net1", "c1").await.len(), 1);
            let without = ask.with(json!({"ipam": null}));
            stage.del(&without).await.unwrap();
            stage.assert_bare(&["c1"]).await;
            stage.del(&without).await.unwrap();
        }
        let never_added = Ask::container("c2").with(json!({"ipam": {}}));
        stage.del(&never_added).await.unwrap();
    });
}

#[test]
fn del_without_ipam_fails_while_another_plugin_may_hold_the_address() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let annotations = json!({"cni.projectcalico.org/ipAddrsNoIpam": r#"["192.0.2.7"]"#});
        stage.pod("mypod", annotations);
        let ask = Ask::pod("c1", "mypod").with(json!({"feature_control": {"ip_addrs_no_ipam": true}}));
        stage.add(&ask).await.unwrap();
        let error = stage.del(&ask.clone().with(json!({"ipam": null}))).await.unwrap_err();
        assert!(error.code == 7 && error.msg.contains("192.0.2.7"), "{error}");
        assert_eq!(stage.endpoints().len(), 1, "the endpoint still says what has to be given back");
        // Another container's endpoint does not matter.
        stage.del(&Ask::pod("c2", "mypod").with(json!({"ipam": null}))).await.unwrap();
        stage.del(&ask).await.unwrap();
        stage.assert_bare(&["c1"]).await;
    });
}
