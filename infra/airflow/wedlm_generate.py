"""An Airflow DAG that calls the job, and does nothing else: new files under the input prefix are generated each day.

Airflow's workers need the command ``ray`` and the address of a Ray head; they need neither this repository nor a GPU.
The job is resumable: a retry continues where the attempt before it ended, and a run that finds nothing new ends at
once. Set the variables ``wedlm_ray_address``, ``wedlm_input``, ``wedlm_output`` and ``wedlm_model`` in Airflow.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    dag_id="wedlm_generate",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # an output has one writer
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    tags=["wedlm"],
) as dag:
    BashOperator(
        task_id="generate",
        bash_command=(
            'ray job submit --address "$JOB_ADDRESS" -- python -m jobs.generate'
            ' --input "$JOB_INPUT" --output "$JOB_OUTPUT" --model "$JOB_MODEL"'
        ),
        # Not in the command itself, since the shell would interpret them.
        env={
            "JOB_ADDRESS": "{{ var.value.wedlm_ray_address }}",
            "JOB_INPUT": "{{ var.value.wedlm_input }}",
            "JOB_OUTPUT": "{{ var.value.wedlm_output }}",
            "JOB_MODEL": "{{ var.value.wedlm_model }}",
        },
        append_env=True,
    )
