//! containerd 1.6 and later, as far as the sandboxes' pause containers need it: a client of its
//! API, and the pull of an image, which containerd leaves to its clients. `sandbox` makes sandboxes
//! with it.
//!
//! All calls are asynchronous and stateless: objects that survive a call are in containerd, under
//! the caller's names.

#![allow(missing_docs, reason = "used only by this repository; names say most of it")]
// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod api;
mod authorization;
mod client;
mod connection;
mod containers;
mod content;
mod credentials;
mod error;
mod image;
mod manifest;
mod pull;
mod reference;
mod registry;
mod snapshots;
mod unpack;

pub use api::{Any, Container, ContainerRuntime, Mount, RuncOptions, TaskStatus};
pub use client::Client;
pub use credentials::{Credential, Keyring, usual_files};
pub use error::{CallError, ImageError, PullError, RegistryError};
pub use image::{Image, Process, ensure, find};
pub use reference::{Reference, ReferenceError};
