-- Tables of an OpenHermit database, as far as the importer must understand them.
CREATE TABLE agents (agent_id text PRIMARY KEY, name text, workspace_dir text NOT NULL, config_json text,
  security_json text, backend_state jsonb, status text NOT NULL DEFAULT 'active', created_at text, updated_at text);
CREATE TABLE sessions (agent_id text, session_id text, source_kind text, source_platform text,
  interactive integer, created_at text, last_activity_at text, description text, description_source text,
  message_count integer DEFAULT 0, completed_turn_count integer DEFAULT 0, last_message_preview text,
  working_memory text, working_memory_updated_at text, metadata jsonb DEFAULT '{}', status text DEFAULT 'idle',
  type text DEFAULT 'direct', user_ids jsonb DEFAULT '[]', PRIMARY KEY (agent_id, session_id));
CREATE TABLE session_events (id serial PRIMARY KEY, agent_id text, session_id text, ts text,
  event_type text, payload jsonb, content text, user_id text);
CREATE TABLE memories (agent_id text, memory_key text, content text, metadata jsonb DEFAULT '{}',
  created_at text DEFAULT '', updated_at text, PRIMARY KEY (agent_id, memory_key));
CREATE TABLE schedules (agent_id text, schedule_id text, type text, status text, cron_expression text,
  run_at text, prompt text, session_mode text, delivery jsonb, policy jsonb, created_by text, created_at text,
  updated_at text, last_run_at text, next_run_at text, run_count integer DEFAULT 0,
  consecutive_errors integer DEFAULT 0, last_error text);
CREATE TABLE agent_secrets (agent_id text, name text, value_ciphertext text, created_at text, updated_at text);
CREATE TABLE sandboxes (id text PRIMARY KEY, agent_id text, alias text, type text, external_id text,
  status text, config jsonb, runtime_state jsonb, created_at text, updated_at text, last_seen_at text);
