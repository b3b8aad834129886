//! The Container Network Interface, versions 0.1.0 to 1.1.0: what both of its sides read and write.
//!
//! A plugin starts with [`plugin::prepare`] and ends with [`plugin::finish`]; a runtime starts with a [`ConfigList`]
//! and reads a [`CniResult`] or a [`CniError`]. [`relay`] is the whole of the small executable that runtimes run: it
//! hands the request to the agent. Nothing here is asynchronous, and nothing touches the kernel's network.
//!
//! Whole numbers are kept exactly up to 64 bits; only larger ones, which no peer writes, pass through floating point.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod args;
pub mod base64;
mod config;
mod env;
mod error;
mod field;
mod list;
mod overrides;
pub mod plugin;
pub mod relay;
mod result;
mod runtime_config;
mod version;

pub use args::{CniArgs, PodArgs};
pub use config::{ATTACHMENT_KEYS, NetworkConfig, ValidAttachment};
pub use env::{Call, Env, Target, process_vars};
pub use error::{CniError, code};
pub use field::FieldError;
pub use list::{ConfigError, ConfigList, PluginConfig};
pub use overrides::Overrides;
pub use plugin::{Outcome, Prepared, Request};
pub use result::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
pub use runtime_config::{Bandwidth, PortMapping, RuntimeConfig};
pub use version::{UnsupportedVersion, Verb, Version, VersionSyntax, select};
