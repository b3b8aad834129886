//! Certificates that the openssl program makes, as an operator would.

use std::path::Path;

use crate::run;

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

/// The path of a file in a directory, as an argument.
pub fn path(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

/// The files of a test: the authorities `ca` and `unknown` (`NAME.pem`, `NAME.key`), and certificates for servers on
/// 127.0.0.1 and clients alike: `server` and `client` of the first, `intruder` of the second. `name` is the servers' other
/// name.
pub fn certificates(name: &str) -> tempfile::TempDir {
    certificates_for(&format!("DNS:{name}"))
}

/// The same with other names of the servers, as openssl has them: `IP:10.77.0.1,DNS:kubernetes`.
pub fn certificates_for(names: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("make a directory");
    let at = directory.path();
    for authority in ["ca", "unknown"] {
        let (cert, key) = (path(at, &format!("{authority}.pem")), path(at, &format!("{authority}.key")));
        let subject = format!("/CN={authority}");
        let rest = ["-days", "2", "-subj", &subject, "-keyout", &key, "-out", &cert];
        run("openssl", &[&["req", "-x509"], &NEW_KEY[..], &rest].concat());
    }
    let extensions = path(at, "extensions");
    let text = format!("subjectAltName=IP:127.0.0.1,{names}\nextendedKeyUsage=serverAuth,clientAuth\n");
    std::fs::write(&extensions, text).expect("write a file");
    for (authority, name) in [("ca", "server"), ("ca", "client"), ("unknown", "intruder")] {
        request(at, name);
        sign(at, authority, name, name, &["-extfile", &extensions]);
    }
    directory
}

/// A key and a request for a certificate: `NAME.key`, `NAME.csr`.
pub fn request(directory: &Path, name: &str) {
    let (key, request) = (path(directory, &format!("{name}.key")), path(directory, &format!("{name}.csr")));
    let rest = ["-subj", &format!("/CN={name}"), "-keyout", &key, "-out", &request];
    run("openssl", &[&["req"], &NEW_KEY[..], &rest].concat());
}

/// Has an authority sign a request as `NAME.pem`. Without extensions openssl makes X.509 version 1.
pub fn sign(directory: &Path, authority: &str, request: &str, name: &str, extensions: &[&str]) {
    let at = |name: &str| path(directory, name);
    let (request, cert) = (at(&format!("{request}.csr")), at(&format!("{name}.pem")));
    let (ca, key) = (at(&format!("{authority}.pem")), at(&format!("{authority}.key")));
    let sign = ["x509", "-req", "-days", "2", "-CAcreateserial", "-CA", &ca, "-CAkey", &key];
    run("openssl", &[&sign[..], &["-in", &request, "-out", &cert], extensions].concat());
}
