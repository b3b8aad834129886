//! The log at level `info`: words and fields that operators of Calico's plugin search for.

use super::*;

impl Stage {
    /// The log of one ADD.
    async fn said(&self, ask: &Ask) -> String {
        let before = self.log.text().len();
        self.log.set_level(ask.parts("ADD").2.unwrap().log.level);
        self.add(ask).await.unwrap();
        self.log.text().split_off(before)
    }
}

#[track_caller]
fn assert_says(said: &str, facts: &[&str]) {
    for fact in facts {
        assert!(said.lines().any(|line| line.contains("[INFO]") && line.ends_with(fact)), "{fact}:\n{said}");
    }
}

#[test]
fn an_add_says_which_addresses_and_which_host_end_a_pod_gets() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        let of_pod = r#"ContainerID="c1" Namespace="test" Pod="mypod""#;
        let said = stage.said(&Ask::pod("c1", "mypod")).await;
        let net = stage.endpoint().ip_networks[0];
        let host = stage.endpoint().interface_name.unwrap();
        assert_says(
            &said,
            &[
                &format!("Calico CNI using IPs: [{net}] {of_pod}"),
                &format!("Setting the host side veth name to {host} {of_pod}"),
                &format!("Wrote the endpoint of c1: [{net}] on {host}"),
            ],
        );
        assert!(!said.contains("profile"), "a namespace's profiles are not the plugin's: {said}");
        let said = stage.said(&Ask::pod("c1", "mypod")).await;
        let found = format!(
            "Calico CNI found existing endpoint: {}/workloadendpoints/test/n1-k8s-mypod-eth0 IPs=[{net}] Interface=\"{host}\" {of_pod}",
            "/calico/resources/v3/projectcalico.org"
        );
        assert_says(&said, &[&found]);
    });
}

#[test]
fn an_add_says_which_profile_was_made_or_appended() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let ask = Ask::container("c1");
        assert_says(&stage.said(&ask).await, &[r#"Calico CNI creating profile: net1 ContainerID="c1""#]);
        let other = Ask { network: "net2".into(), ..ask.clone() };
        let said = stage.said(&other).await;
        let lines = ["Calico CNI creating profile: net2", "Calico CNI appending profile: net2"];
        assert_says(
            &said,
            &lines.map(|line| format!(r#"{line} ContainerID="c1""#)).each_ref().map(String::as_str),
        );
        let said = stage.said(&other).await;
        assert_says(&said, &[r#"Calico CNI endpoint already has profile: net2 ContainerID="c1""#]);
        assert!(!said.contains("creating profile"), "{said}");
    });
}

#[test]
fn a_higher_log_level_silences_the_facts() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let said = stage.said(&Ask::container("c1").with(json!({"log_level": "warning"}))).await;
        assert!(!said.contains("[INFO]") && !said.contains("using IPs"), "{said}");
    });
}
