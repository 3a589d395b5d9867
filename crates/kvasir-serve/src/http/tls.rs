use std::{path::Path, sync::Arc};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// TLS 1.2 and 1.3 with the certificate chain and the key in these PEM files. The error names the file.
pub fn tls(certificates: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificates).and_then(|items| items.collect::<Result<_, _>>());
    let chain = chain.map_err(|error| format!("{}: {error}", certificates.display()))?;
    if chain.is_empty() {
        return Err(format!("{}: holds no certificate", certificates.display()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| format!("{} with {}: {error}", certificates.display(), key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
