//! Maps errors of sandboxes to gRPC codes. Clients distinguish only an unknown sandbox by its code;
//! people read the message.

use crate::SandboxError;
use russet_sync::PoolError;
use tonic::{Code, Status};

pub fn status(error: &SandboxError) -> Status {
    Status::new(code(error), error.to_string())
}

/// The status of a call whose work has no result.
pub fn without_result(error: PoolError) -> Status {
    match error {
        PoolError::Closed => Status::unavailable("the server is stopping"),
        PoolError::Interrupted(error) => Status::internal(format!("the work ended half-way: {error}")),
    }
}

fn code(error: &SandboxError) -> Code {
    match error {
        SandboxError::Config(_) => Code::InvalidArgument,
        SandboxError::Reserved { .. } => Code::AlreadyExists,
        SandboxError::NotFound(_) => Code::NotFound,
        SandboxError::NetworkNotReady(_) | SandboxError::InUse { .. } | SandboxError::Busy => {
            Code::Unavailable
        }
        SandboxError::Create { source, .. } => match code(source) {
            // A creation that finds something missing must not look like an unknown sandbox.
            Code::NotFound => Code::Internal,
            code => code,
        },
        SandboxError::Engine(_)
        | SandboxError::Network { .. }
        | SandboxError::NoAddress { .. }
        | SandboxError::Step { .. }
        | SandboxError::Several(_) => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_requested_sandbox_is_not_found() {
        let missing = || SandboxError::NotFound("ab".repeat(32).parse().unwrap());
        assert_eq!(status(&missing()).code(), Code::NotFound);
        let id = "cd".repeat(32).parse().unwrap();
        let creation = SandboxError::Create { id, source: Box::new(missing()), left: None };
        assert_eq!(status(&creation).code(), Code::Internal);
        assert!(status(&creation).message().contains(&"ab".repeat(32)));
    }
}
