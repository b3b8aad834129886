//! The runtime's own status, and its refusals.

use russet_testkit::cri::{StatusCode, v1};
use russet_testkit::{eventually, eventually_some};
use v1::{IMAGE_SERVICE, RUNTIME_SERVICE};

use crate::lab::{Lab, TIMEOUT, host_pod};

/// Every call of the interface, as of Kubernetes 1.36, that is not about sandboxes or repeats
/// another one.
const NOT_SERVED: &[(&str, &str)] = &[
    (RUNTIME_SERVICE, "StreamPodSandboxes"),
    (RUNTIME_SERVICE, "CreateContainer"),
    (RUNTIME_SERVICE, "StartContainer"),
    (RUNTIME_SERVICE, "StopContainer"),
    (RUNTIME_SERVICE, "RemoveContainer"),
    (RUNTIME_SERVICE, "ListContainers"),
    (RUNTIME_SERVICE, "StreamContainers"),
    (RUNTIME_SERVICE, "ContainerStatus"),
    (RUNTIME_SERVICE, "UpdateContainerResources"),
    (RUNTIME_SERVICE, "ReopenContainerLog"),
    (RUNTIME_SERVICE, "ExecSync"),
    (RUNTIME_SERVICE, "Exec"),
    (RUNTIME_SERVICE, "Attach"),
    (RUNTIME_SERVICE, "PortForward"),
    (RUNTIME_SERVICE, "ContainerStats"),
    (RUNTIME_SERVICE, "ListContainerStats"),
    (RUNTIME_SERVICE, "StreamContainerStats"),
    (RUNTIME_SERVICE, "StreamPodSandboxStats"),
    (RUNTIME_SERVICE, "CheckpointContainer"),
    (RUNTIME_SERVICE, "ListMetricDescriptors"),
    (RUNTIME_SERVICE, "ListPodSandboxMetrics"),
    (RUNTIME_SERVICE, "StreamPodSandboxMetrics"),
    (RUNTIME_SERVICE, "UpdatePodSandboxResources"),
    (IMAGE_SERVICE, "ListImages"),
    (IMAGE_SERVICE, "StreamImages"),
    (IMAGE_SERVICE, "ImageStatus"),
    (IMAGE_SERVICE, "PullImage"),
    (IMAGE_SERVICE, "RemoveImage"),
    (IMAGE_SERVICE, "ImageFsInfo"),
    // Unknown calls.
    (RUNTIME_SERVICE, "BakeContainer"),
    ("runtime.v1alpha2.RuntimeService", "Version"),
    ("unknown.Service", "Call"),
];

#[test]
fn calls_about_containers_and_images_are_unimplemented_by_name() {
    let lab = Lab::start();
    for (service, method) in NOT_SERVED {
        let refused = lab.cri.ask::<_, ()>((service, method), (), None).unwrap_err();
        assert_eq!(refused.code(), Some(StatusCode::Unimplemented), "{service}/{method}");
        assert!(refused.to_string().contains(&format!("{service}/{method} is not served")), "{refused}");
    }
    assert!(lab.cri.sandboxes().unwrap().is_empty());
}

#[test]
fn version_and_cgroup_driver_are_reported() {
    let lab = Lab::start();
    let version: v1::VersionResponse =
        lab.cri.ask((RUNTIME_SERVICE, "Version"), v1::VersionRequest::default(), None).unwrap();
    assert_eq!((version.version.as_str(), version.runtime_api_version.as_str()), ("0.1.0", "v1"));
    assert_eq!(
        (version.runtime_name.as_str(), version.runtime_version.as_str()),
        ("russet", env!("CARGO_PKG_VERSION"))
    );
    let config: v1::RuntimeConfigResponse =
        lab.cri.ask((RUNTIME_SERVICE, "RuntimeConfig"), v1::RuntimeConfigRequest {}, None).unwrap();
    assert_eq!(config.linux.unwrap().cgroup_driver(), v1::CgroupDriver::Cgroupfs);
}

#[test]
fn the_network_is_ready_when_there_is_one() {
    let lab = Lab::start();
    let conditions = lab.cri.status().unwrap().status.unwrap().conditions;
    assert_eq!((conditions[0].r#type.as_str(), conditions[0].status), ("RuntimeReady", true));
    let without = lab.network_condition();
    assert_eq!((without.status, without.reason.as_str()), (false, "NetworkPluginNotReady"));
    assert!(without.message.contains(lab.path("net.d").to_str().unwrap()), "{}", without.message);

    let lab = Lab::with_network();
    // Its plugin may be slow to start.
    let with = eventually_some(TIMEOUT, || Some(lab.network_condition()).filter(|it| it.status));
    assert_eq!((with.reason.as_str(), with.message.as_str()), ("", ""));
    eventually(TIMEOUT, || lab.cri.is_ready());
}

#[test]
fn a_pod_cidr_is_accepted_and_shown() {
    let lab = Lab::with_network();
    let update = |cidr: &str| {
        let network_config = Some(v1::NetworkConfig { pod_cidr: cidr.to_owned() });
        let request =
            v1::UpdateRuntimeConfigRequest { runtime_config: Some(v1::RuntimeConfig { network_config }) };
        lab.cri.ask::<_, v1::UpdateRuntimeConfigResponse>(
            (RUNTIME_SERVICE, "UpdateRuntimeConfig"),
            request,
            None,
        )
    };
    update("10.7.0.0/24").unwrap();
    eventually(TIMEOUT, || {
        let info = lab.cri.status().unwrap().info;
        assert_eq!(info["podCIDR"], r#"["10.7.0.0/24"]"#);
        assert_eq!(info["config"], r#"{"engine":"memory"}"#);
        info["lastCNILoadStatus"] == r#""OK""#
    });
    assert_eq!(update("10.7.0.0/99").unwrap_err().code(), Some(StatusCode::InvalidArgument));
}

#[test]
fn a_request_that_is_too_large_is_refused_and_the_next_is_not() {
    let lab = Lab::start();
    let mut config = host_pod("web");
    config.annotations.insert("large".into(), "x".repeat(3 * 1024 * 1024));
    let refused = lab.cri.run_config(config).unwrap_err();
    assert_eq!(refused.code(), Some(StatusCode::OutOfRange), "{refused}");
    lab.run("web");
}
