"""The registry: every table of an agent store as data.

Schema in three dialects, verbs, validation, command listings, the reference page and the import
derive from it. A key is at most as long as the narrowest provider takes, so data stays portable.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = [
    "LONGEST_VALUE", "TABLES", "VERSION", "WILDCARD", "Column", "Foreign", "Form", "Index", "Table",
    "Unique",
]  # fmt: skip

VERSION = 1
"""Version of this schema, kept under ``agents_version`` beside the other facts of a store."""

WILDCARD = "*"
"""The agent id that stands for every agent, in tables of assignments alone."""

LONGEST_VALUE = 16 * 2**20
"""Characters of a single text or document."""


class Form(Enum):
    """Forms of values."""

    TEXT = "text"
    JSON = "JSON"
    FLAG = "yes or no"
    NUMBER = "number"
    SERIAL = "number of the store"
    TIME = "time"


class Column(NamedTuple):
    """One column. A *length* makes it part of keys; *once*: an upsert never changes it."""

    name: str
    form: Form = Form.TEXT
    length: int = 0
    null: bool = False
    default: str | int | None = None
    once: bool = False
    values: tuple[str, ...] = ()
    secret: bool = False
    """Ciphertext: never in a listing or a record."""
    derived: bool = False
    """Made from other columns, for search; never in a record."""


class Condition(NamedTuple):
    """A column that has a value, has another one (``<>``), or is null."""

    column: str
    sign: str
    value: str | None = None

    @property
    def sql(self) -> str:
        """The condition in SQL, the same in every dialect."""
        return (
            f"{self.column} IS NULL"
            if self.value is None
            else (f"{self.column} {self.sign} '{self.value}'")
        )

    def holds(self, value: object) -> bool:
        """Return True if a row with *value* in the column satisfies it."""
        return (value == self.value) == (self.sign == "=")


class Unique(NamedTuple):
    """A rule beyond the key: no two rows that satisfy *where* have the same *columns*."""

    name: str
    columns: tuple[str, ...]
    where: tuple[Condition, ...]
    conflict: str
    """The message; ``{name}`` is a column of the row that holds the place."""


class Index(NamedTuple):
    """An index; *where* is dropped where a provider has no partial ones."""

    name: str
    columns: tuple[str, ...]
    where: str = ""


class Foreign(NamedTuple):
    """Rows go with the row of *table* that they refer to."""

    columns: tuple[str, ...]
    table: str
    names: tuple[str, ...]


class Table(NamedTuple):
    """One table. *scope* is ``agent``, ``wildcard`` (an agent or ``*``) or ``global``."""

    name: str
    about: str
    scope: str
    key: tuple[str, ...]
    """Names one row, within the scope."""
    order: tuple[str, ...]
    """Order of listings; a leading minus: descending."""
    columns: tuple[Column, ...]
    uniques: tuple[Unique, ...] = ()
    indexes: tuple[Index, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    thing: str = "row"
    """One row, in messages."""
    nulls: bool = False
    """Records keep null values."""

    @property
    def scoped(self) -> bool:
        """True if every row belongs to an agent, or to all by the wildcard."""
        return self.scope != "global"

    @property
    def whole_key(self) -> tuple[str, ...]:
        """The key in the whole store."""
        numbered = self.serial is not None and self.key == (self.serial,)
        return ("agent_id", *self.key) if self.scoped and not numbered else self.key

    @property
    def serial(self) -> str | None:
        """The column that the store numbers, if there is one."""
        return next((c.name for c in self.columns if c.form is Form.SERIAL), None)

    def column(self, name: str) -> Column | None:
        """Return the column *name*, ``None`` if there is none."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in order."""
        return tuple(column.name for column in self.columns)


def _key(name: str, length: int, **rules: object) -> Column:
    return Column(name, Form.TEXT, length, **rules)  # type: ignore[arg-type]


def _body(name: str, null: bool = False, **rules: object) -> Column:
    return Column(name, null=null, **rules)  # type: ignore[arg-type]


def _json(name: str, default: str = "{}") -> Column:
    return Column(name, Form.JSON, default=default)


def _flag(name: str, default: int) -> Column:
    return Column(name, Form.FLAG, default=default)


def _number(name: str, default: int | None = 0) -> Column:
    return Column(name, Form.NUMBER, default=default, null=default is None)


def _time(name: str, null: bool = False) -> Column:
    return Column(name, Form.TIME, null=null)


_AGENT = _key("agent_id", 191, once=True)
_CREATED = Column("created_at", Form.TIME, once=True)
_UPDATED = _time("updated_at")
_NOT_DELETED = Condition("status", "<>", "deleted")

_LIST: list[Table] = [
    Table("meta", "Key and value of the whole store.", "global", ("key",), ("key",),
          (_key("key", 191), _body("value")), thing="Meta key"),
    Table("agents", "One row per registered agent.", "agent", (), ("created_at", "agent_id"),
          (_AGENT, _body("name", null=True), _body("workspace_dir"),
           _body("config_json", null=True), _body("security_json", null=True),
           Column("backend_state", Form.JSON, null=True),
           _key("status", 16, default="active", values=("active", "disabled")), _CREATED, _UPDATED),
          indexes=(Index("idx_agents_status", ("status",)),), thing="Agent"),
    Table("sessions", "Conversations, with their counters and participants.", "agent",
          ("session_id",), ("-last_activity_at", "session_id"),
          (_AGENT, _key("session_id", 255, once=True), _key("source_kind", 64, once=True),
           _key("source_platform", 64, null=True, once=True),
           Column("interactive", Form.FLAG, once=True), _CREATED,
           _time("last_activity_at"), _body("description", null=True),
           _key("description_source", 16, null=True), _number("message_count"),
           _number("completed_turn_count"), _body("last_message_preview", null=True),
           _body("working_memory", null=True), _time("working_memory_updated_at", null=True),
           _json("metadata"),
           _key("status", 32, default="idle",
                values=("idle", "running", "awaiting_approval", "inactive")),
           _key("type", 16, default="direct", values=("direct", "group"), once=True),
           _json("user_ids", "[]"), _body("custom_instruction", null=True, once=True)),
          indexes=(Index("idx_sessions_agent", ("agent_id", "last_activity_at")),),
          thing="Session"),
    Table("session_events", "The log of every session.", "agent", ("id",), ("id",),
          (Column("id", Form.SERIAL), _AGENT, _key("session_id", 255), _time("ts"),
           _key("event_type", 64), Column("payload", Form.JSON), _body("content", null=True),
           _key("user_id", 191, null=True), _key("message_id", 255, null=True, derived=True)),
          indexes=(Index("idx_session_events_agent_session", ("agent_id", "session_id", "ts")),
                   Index("idx_session_events_type",
                         ("agent_id", "session_id", "event_type", "id")),
                   Index("idx_session_events_message", ("agent_id", "session_id", "message_id"),
                         "message_id IS NOT NULL"),
                   Index("idx_session_events_usage", ("agent_id", "ts"),
                         "event_type = 'assistant'"),
                   Index("idx_session_events_errors", ("agent_id", "event_type", "ts"),
                         "event_type = 'error'"),
                   Index("idx_session_events_user", ("user_id",), "user_id IS NOT NULL")),
          foreign=(Foreign(("agent_id", "session_id"), "sessions", ("agent_id", "session_id")),),
          thing="Event"),
    Table("memories", "Long-term memory by key.", "agent", ("memory_key",),
          ("-updated_at", "memory_key"),
          (_AGENT, _key("memory_key", 512), _body("content"), _json("metadata"),
           _json("grants", "[]"), _CREATED, _UPDATED,
           _body("content_lex", derived=True, default=""),
           _body("key_fold", derived=True, default=""),
           _body("content_fold", derived=True, default="")),
          indexes=(Index("idx_memories_agent", ("agent_id", "updated_at")),), thing="Memory entry"),
    Table("sandboxes", "Execution environments.", "agent", ("id",), ("agent_id", "alias"),
          (_key("id", 64), _AGENT, _key("alias", 191),
           _key("type", 32, values=("host", "docker", "e2b", "daytona", "tenki")),
           _key("external_id", 255, null=True),
           _key("status", 16, default="pending", values=("pending", "provisioned", "deleted")),
           _json("config"), _json("runtime_state"), _CREATED, _UPDATED,
           _time("last_seen_at", null=True)),
          uniques=(Unique("uq_sandboxes_alias", ("agent_id", "alias"), (_NOT_DELETED,),
                          "the agent has a sandbox {alias} already"),
                   Unique("uq_sandboxes_host", ("type",),
                          (Condition("type", "=", "host"), _NOT_DELETED),
                          "agent {agent_id} has the host sandbox; there can be one only")),
          indexes=(Index("idx_sandboxes_agent", ("agent_id", "alias")),
                   Index("idx_sandboxes_type_external", ("type", "external_id"))),
          thing="Sandbox", nulls=True),
    Table("instructions", "Sections of the prompt.", "agent", ("key",), ("key",),
          (_AGENT, _key("key", 191), _body("content"), _UPDATED), thing="Instruction"),
    Table("users", "People, over all agents.", "global", ("user_id",), ("created_at", "user_id"),
          (_key("user_id", 191), _body("name", null=True), _key("merged_into", 191, null=True),
           _CREATED, _UPDATED),
          indexes=(Index("idx_users_updated", ("updated_at",)),), thing="User"),
    Table("user_agents", "Roles of users.", "agent", ("user_id",), ("created_at", "user_id"),
          (_key("user_id", 191), _AGENT, _key("role", 16, values=("owner", "user", "guest")),
           _CREATED),
          indexes=(Index("idx_user_agents_user", ("user_id",)),),
          foreign=(Foreign(("user_id",), "users", ("user_id",)),), thing="Membership"),
    Table("user_identities", "Names of users on channels.", "global",
          ("channel", "channel_user_id"), ("created_at", "channel", "channel_user_id"),
          (_key("user_id", 191), _key("channel", 64), _key("channel_user_id", 512), _CREATED),
          indexes=(Index("idx_user_identities_user", ("user_id",)),),
          foreign=(Foreign(("user_id",), "users", ("user_id",)),), thing="Identity"),
    Table("skills", "Registered skills.", "global", ("id",), ("name", "id"),
          (_key("id", 450), _key("slug", 191), _body("name"), _body("description"), _body("path"),
           _key("source", 16, default="system", values=("system", "user")),
           _key("owner_agent_id", 191, null=True), _json("metadata"), _time("created_at"),
           _UPDATED),
          uniques=(Unique("skills_system_slug", ("slug",), (Condition("source", "=", "system"),),
                          "skill {id} has the name {slug} already"),
                   Unique("skills_user_slug", ("owner_agent_id", "slug"),
                          (Condition("source", "=", "user"),),
                          "skill {id} of the agent has the name {slug} already")),
          indexes=(Index("idx_skills_owner", ("owner_agent_id",)),), thing="Skill"),
    Table("agent_skills", "Skills of an agent, or of all.", "wildcard", ("skill_id",),
          ("agent_id", "skill_id"),
          (_AGENT, _key("skill_id", 450), _flag("enabled", 1), _CREATED),
          foreign=(Foreign(("skill_id",), "skills", ("id",)),), thing="Assignment"),
    Table("mcp_servers", "Registered MCP servers.", "global", ("id",), ("name", "id"),
          (_key("id", 450), _body("name"), _body("description"), _body("url"), _json("headers"),
           _json("metadata"), _time("created_at"), _UPDATED), thing="MCP server"),
    Table("agent_mcp_servers", "MCP servers of an agent, or of all.", "wildcard",
          ("mcp_server_id",), ("agent_id", "mcp_server_id"),
          (_AGENT, _key("mcp_server_id", 450), _flag("enabled", 1), _CREATED),
          foreign=(Foreign(("mcp_server_id",), "mcp_servers", ("id",)),), thing="Assignment"),
    Table("agent_channels", "Channels, with encrypted tokens.", "agent", ("id",),
          ("kind", "channel_type", "created_at", "id"),
          (_key("id", 64), _AGENT, _key("kind", 16, values=("builtin", "external")),
           _key("channel_type", 191), _key("namespace", 191), _body("label", null=True),
           _flag("enabled", 0), _json("config"), _key("token_prefix", 32),
           _body("token_ciphertext", secret=True), _key("created_by", 191, null=True), _CREATED,
           _UPDATED, _time("last_used_at", null=True), _time("revoked_at", null=True),
           _body("last_error", null=True), _time("last_error_at", null=True),
           _time("last_success_at", null=True), _number("consecutive_failure_count"),
           _number("total_failure_count")),
          uniques=(Unique("uq_agent_channels_namespace", ("agent_id", "namespace"),
                          (Condition("revoked_at", "="),),
                          "the agent has a channel {namespace} already"),),
          thing="Channel"),
    Table("agent_channel_credentials", "Encrypted state of channels.", "agent",
          ("channel_type", "profile", "key"), ("channel_type", "profile", "key"),
          (_AGENT, _key("channel_type", 64), _key("profile", 128), _key("key", 384),
           _body("value_ciphertext", secret=True), _CREATED, _UPDATED), thing="Credential"),
    Table("agent_secrets", "Encrypted secrets.", "agent", ("name",), ("name",),
          (_AGENT, _key("name", 191), _body("value_ciphertext", secret=True),
           _flag("pass_through", 0), _CREATED, _UPDATED), thing="Secret"),
    Table("schedules", "Cron and one-shot schedules.", "agent", ("schedule_id",),
          ("-created_at", "schedule_id"),
          (_AGENT, _key("schedule_id", 191), _key("type", 16, values=("cron", "once")),
           _key("status", 16, default="active",
                values=("active", "paused", "completed", "failed")),
           _key("cron_expression", 255, null=True), _time("run_at", null=True), _body("prompt"),
           _json("session_mode", '{"kind":"dedicated"}'), _json("delivery", '{"kind":"silent"}'),
           _json("policy"), _key("created_by", 191, null=True), _CREATED, _UPDATED,
           _time("last_run_at", null=True), _time("next_run_at", null=True), _number("run_count"),
           _number("consecutive_errors"), _body("last_error", null=True),
           _key("claimed_by", 191, null=True, derived=True),
           Column("claim_expires_at", Form.TIME, null=True, derived=True)),
          indexes=(Index("idx_schedules_agent_status", ("agent_id", "status")),
                   Index("idx_schedules_due", ("status", "next_run_at"))), thing="Schedule"),
    Table("schedule_runs", "Runs of schedules.", "agent", ("id",), ("-started_at", "-id"),
          (Column("id", Form.SERIAL), _AGENT, _key("schedule_id", 191),
           _key("status", 16, values=("running", "completed", "failed", "skipped")),
           _key("session_id", 255, null=True), _body("prompt"), _time("started_at"),
           _time("finished_at", null=True), _number("duration_ms", None),
           _body("error", null=True)),
          indexes=(Index("idx_schedule_runs_schedule", ("agent_id", "schedule_id", "started_at")),),
          foreign=(Foreign(("agent_id", "schedule_id"), "schedules", ("agent_id", "schedule_id")),),
          thing="Run"),
    Table("agent_policies", "Rules on the use of resources.", "agent", ("id",),
          ("resource_type", "resource_key", "effect"),
          (_key("id", 64), _AGENT, _key("resource_type", 64), _key("resource_key", 384),
           _key("effect", 32, default="allow", values=("allow", "deny", "require_approval")),
           _json("grants", "[]"), _json("scope"), _CREATED, _UPDATED),
          uniques=(Unique("uq_agent_policies_resource",
                          ("agent_id", "resource_type", "resource_key", "effect"), (),
                          "there is a policy for {resource_key} already"),), thing="Policy"),
    Table("approval_requests", "Questions to a person.", "agent", ("id",), ("-created_at", "id"),
          (_key("id", 64), Column("short_id", Form.SERIAL), _AGENT, _key("session_id", 255),
           _key("requester_id", 191), _key("resource_type", 64), _key("resource_key", 384),
           _json("scope"),
           _key("status", 16, default="pending",
                values=("pending", "approved", "rejected", "expired")),
           _key("resolution", 16, null=True, values=("once", "persistent")),
           _key("resolved_by", 191, null=True), _body("reason", null=True), _CREATED,
           _time("resolved_at", null=True), _number("ttl_minutes", 60)),
          indexes=(Index("idx_approval_requests_status", ("agent_id", "status")),),
          thing="Approval"),
    Table("session_attachments", "Files of sessions.", "agent", ("id",), ("-created_at", "id"),
          (_key("id", 64), _AGENT, _key("session_id", 255),
           _key("uploader_user_id", 191, null=True), _body("original_name"), _body("safe_name"),
           _body("mime_type"), _number("size_bytes"), _key("sha256", 64),
           _key("storage_provider", 64), _body("storage_key"), _key("sandbox_id", 64, null=True),
           _body("sandbox_path", null=True),
           _key("materialization_state", 16, default="pending",
                values=("pending", "copied", "failed")),
           _body("materialization_error", null=True), _CREATED),
          indexes=(Index("idx_session_attachments_session",
                         ("agent_id", "session_id", "created_at")),
                   Index("idx_session_attachments_user",
                         ("agent_id", "uploader_user_id", "created_at"))),
          foreign=(Foreign(("agent_id", "session_id"), "sessions", ("agent_id", "session_id")),),
          thing="Attachment"),
    Table("consumed_jtis", "Tokens that were used.", "global", ("jti",), ("jti",),
          (_key("jti", 255), _number("expires_at"), _time("consumed_at")),
          indexes=(Index("idx_consumed_jtis_expires", ("expires_at",)),), thing="Token"),
]  # fmt: skip

TABLES: dict[str, Table] = {table.name: table for table in _LIST}
"""Every table by its name; a table stands after those that it refers to."""
