"""The names of options that a Delta table's store knows. ``deltalake`` ignores those that it does not know.

Sources: the configuration keys of the Rust crate ``object_store`` and those of ``deltalake``'s own (locking, renames on
mounts). Upper and lower case are the same. A name may begin with the store's prefix or not: ``aws_region``, ``region``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.errors import ConfigError

_OF_ALL = (
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only", "http2_only",
    "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_max_frame_size",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
    "randomize_addresses", "read_timeout", "timeout", "user_agent", "max_retries", "retry_timeout",
    "backoff_config.init_backoff", "backoff_config.max_backoff", "backoff_config.base", "skip_signature",
    "object_store_concurrency_limit",
)  # fmt: skip
_LOCAL = ("mount_allow_unsafe_rename", "allow_unsafe_rename")


@dataclass(frozen=True, kw_only=True)
class _Store:
    """A kind of store: ``prefixes`` that its ``names`` may have, and names that are ``whole``."""

    prefixes: tuple[str, ...]
    names: tuple[str, ...]
    whole: tuple[str, ...] = ()

    def known(self) -> list[str]:
        return [*(self.prefixes[0] + name for name in self.names), *self.whole, *_OF_ALL]

    def knows(self, name: str) -> bool:
        bare = [name, *(name.removeprefix(prefix) for prefix in self.prefixes)]
        return name in self.whole or any(own in self.names or own in _OF_ALL for own in bare)


_S3 = _Store(
    prefixes=("aws_",),
    names=(
        "access_key_id", "secret_access_key", "session_token", "token", "region", "default_region", "bucket",
        "bucket_name", "endpoint", "endpoint_url", "endpoint_url_s3", "endpoint_url_sts", "imdsv1_fallback",
        "virtual_hosted_style_request", "unsigned_payload", "checksum_algorithm", "metadata_endpoint",
        "container_credentials_relative_uri", "container_credentials_full_uri", "container_authorization_token_file",
        "web_identity_token_file", "role_arn", "role_session_name", "copy_if_not_exists", "conditional_put",
        "disable_tagging", "s3_express", "request_payer", "server_side_encryption", "sse_kms_key_id",
        "sse_bucket_key_enabled", "sse_customer_key_base64", "profile",
    ),
    whole=(
        "aws_s3_locking_provider", "aws_s3_allow_unsafe_rename", "allow_unsafe_rename", "aws_s3_assume_role_arn",
        "aws_s3_role_session_name", "aws_iam_role_arn", "aws_iam_role_session_name", "aws_sts_regional_endpoints",
        "aws_force_credential_load", "aws_ec2_metadata_disabled", "aws_s3_addressing_style", "delta_dynamo_table_name",
        "aws_s3_pool_idle_timeout_seconds", "aws_sts_pool_idle_timeout_seconds",
        "aws_s3_get_internal_server_error_retries", "aws_endpoint_url_dynamodb", "aws_region_dynamodb",
        "aws_access_key_id_dynamodb", "aws_secret_access_key_dynamodb", "aws_session_token_dynamodb",
    ),
)  # fmt: skip
_AZURE = _Store(
    prefixes=("azure_storage_", "azure_"),
    names=(
        "account_name", "account_key", "access_key", "master_key", "client_id", "client_secret", "tenant_id",
        "authority_id", "authority_host", "sas_key", "sas_token", "token", "bearer_token", "use_emulator",
        "use_fabric_endpoint", "endpoint", "msi_endpoint", "identity_endpoint", "object_id", "msi_resource_id",
        "federated_token_file", "use_azure_cli", "container_name", "disable_tagging", "fabric_token_service_url",
        "fabric_workload_host", "fabric_session_token", "fabric_cluster_identifier",
    ),
)  # fmt: skip
_GOOGLE = _Store(
    prefixes=("google_",),
    names=("service_account", "service_account_path", "service_account_key", "bucket", "bucket_name",
           "application_credentials", "base_url"),
)  # fmt: skip
_STORES: Mapping[str, _Store] = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("az", "adl", "abfs", "abfss", "azure"), _AZURE),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
}


def check_delta_options(url: str, names: Iterable[str]) -> None:
    """Refuse options that the store of a table would ignore. The message has names only: values may be credentials.

    Args:
        url: of the table, or its path.
        names: of the options. Of a store that is none of these, any name may be right.

    Raises:
        ConfigError: there is no such option; the nearest one and all others are named.
    """
    scheme, sign, _ = url.partition("://")
    local = not sign or scheme == "file"
    store = _STORES.get(scheme)
    if store is None and not local:
        return
    known = list(_LOCAL) if store is None else store.known()
    for name in names:
        if name.lower() in known or (store is not None and store.knows(name.lower())):
            continue
        near = difflib.get_close_matches(name.lower(), [*known, *(store.names if store else ())], n=1, cutoff=0.6)
        place = "a path" if local else f"{scheme}://"
        raise ConfigError(
            f"table_options: a table at {place} has no option {name!r}."
            f"{f' Did you mean {near[0]!r}?' if near else ''} Known: {', '.join(known)}."
        )
