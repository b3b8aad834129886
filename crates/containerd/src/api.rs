//! The messages and stubs that build.rs makes of `proto/`.

#![allow(missing_docs, clippy::all, unreachable_pub, dead_code, reason = "generated")]

pub(crate) mod containerd {
    pub(crate) mod types {
        tonic::include_proto!("containerd.types");
    }
    pub(crate) mod services {
        pub(crate) mod containers {
            pub(crate) mod v1 {
                tonic::include_proto!("containerd.services.containers.v1");
            }
        }
        pub(crate) mod content {
            pub(crate) mod v1 {
                tonic::include_proto!("containerd.services.content.v1");
            }
        }
        pub(crate) mod diff {
            pub(crate) mod v1 {
                tonic::include_proto!("containerd.services.diff.v1");
            }
        }
        pub(crate) mod images {
            pub(crate) mod v1 {
                tonic::include_proto!("containerd.services.images.v1");
            }
        }
        pub(crate) mod leases {
            pub(crate) mod v1 {
                tonic::include_proto!("containerd.services.leases.v1");
            }
        }
        pub(crate) mod snapshots {
            pub(crate) mod v1 {
                tonic::include_proto!("containerd.services.snapshots.v1");
            }
        }
        pub(crate) mod tasks {
            pub(crate) mod v1 {
                tonic::include_proto!("containerd.services.tasks.v1");
            }
        }
    }
}

pub(crate) use containerd::services::{containers, content, diff, images, leases, snapshots, tasks};
pub(crate) use containerd::types::{Descriptor, FieldMask};

pub use containerd::services::containers::v1::Container;
pub use containerd::services::containers::v1::container::Runtime as ContainerRuntime;
pub use containerd::services::tasks::v1::Status as TaskStatus;
pub use containerd::types::{Any, Mount};

/// Settings of runc's shim (`containerd.runc.v1.Options`), of which we have one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RuncOptions {
    /// systemd makes control groups.
    #[prost(bool, tag = "9")]
    pub systemd_cgroup: bool,
}
