#!/usr/bin/env python3
"""The manifests for Kubernetes and the scripts for Slurm, as far as that can be seen without a cluster."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
from testing import unittest_report

try:
    import yaml
except ImportError:
    yaml = None

KUBERNETES, SLURM = Path('examples/kubernetes'), Path('examples/slurm')


def documents(name):
    if yaml is None:
        raise unittest.SkipTest('needs PyYAML (Debian: python3-yaml)')
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def of_kind(name, kind):
    return [document for document in documents(name) if document['kind'] == kind]


def templates(name):
    """(name, template) of all pods."""
    for document in documents(name):
        spec = document['spec'] if 'spec' in document else {}
        if 'template' in spec:
            yield document['metadata']['name'], spec['template']
        for role in ('leaderTemplate', 'workerTemplate'):
            if role in spec.get('leaderWorkerTemplate', {}):
                yield role, spec['leaderWorkerTemplate'][role]


def containers(name):
    return {container['name']: (template, container) for _, template in templates(name)
            for container in template['spec']['containers']}


def text_of(container):
    return ' '.join(container.get('command', []) + container.get('args', []))


class ManifestsTest(unittest.TestCase):
    def test_services_select_pods_and_their_ports(self):
        for file in ('replicas.yaml', 'group.yaml'):
            for service in of_kind(file, 'Service'):
                selector = service['spec']['selector'].items()
                pods = [template for _, template in templates(file) if selector <= template['metadata']['labels'].items()]
                self.assertEqual(len(pods), 1, service['metadata'])
                ports = [port['containerPort'] for container in pods[0]['spec']['containers']
                         for port in container['ports']]
                self.assertIn(service['spec']['ports'][0]['port'], ports)

    def test_deployments_select_their_own_pods(self):
        for deployment in of_kind('replicas.yaml', 'Deployment'):
            spec = deployment['spec']
            self.assertEqual(spec['selector']['matchLabels'], spec['template']['metadata']['labels'])

    def test_volumes_that_are_mounted_exist(self):
        for file in ('replicas.yaml', 'group.yaml'):
            for name, (template, container) in containers(file).items():
                volumes = {volume['name'] for volume in template['spec']['volumes']}
                self.assertLessEqual({mount['name'] for mount in container['volumeMounts']}, volumes, name)

    def test_servers_are_probed_by_health_and_have_time_to_finish_their_streams(self):
        for file, name in (('replicas.yaml', 'server'), ('group.yaml', 'leader')):
            template, container = containers(file)[name]
            for probe in ('startupProbe', 'readinessProbe', 'livenessProbe'):
                self.assertEqual(container[probe]['httpGet'], {'path': '/health', 'port': 'http'})
            self.assertEqual(container['readinessProbe']['failureThreshold'], 1)
            shutdown = int(re.search(r'--shutdown-timeout (\d+)', text_of(container))[1])
            sleep = int(re.search(r'sleep (\d+)', ' '.join(container['lifecycle']['preStop']['exec']['command']))[1])
            self.assertGreater(template['spec']['terminationGracePeriodSeconds'], shutdown + sleep)

    def test_shared_memory_is_larger_than_a_containers(self):
        for file, names in (('replicas.yaml', ['server']), ('group.yaml', ['leader', 'worker'])):
            for name in names:
                template, container = containers(file)[name]
                mount = next(mount for mount in container['volumeMounts'] if mount['mountPath'] == '/dev/shm')
                volume = next(volume for volume in template['spec']['volumes'] if volume['name'] == mount['name'])
                self.assertEqual(volume['emptyDir']['medium'], 'Memory')

    def test_the_group_is_a_leader_worker_set_that_starts_again_as_a_whole(self):
        group, = of_kind('group.yaml', 'LeaderWorkerSet')
        self.assertEqual(group['apiVersion'], 'leaderworkerset.x-k8s.io/v1')
        self.assertEqual(group['spec']['leaderWorkerTemplate']['restartPolicy'], 'RecreateGroupOnPodRestart')
        self.assertGreaterEqual(group['spec']['leaderWorkerTemplate']['size'], 2)
        # LeaderWorkerSet makes a service of its own name.
        self.assertNotIn(group['metadata']['name'], [s['metadata']['name'] for s in of_kind('group.yaml', 'Service')])

    def test_the_leader_names_all_pods_of_the_group_to_mpirun(self):
        _, leader = containers('group.yaml')['leader']
        script = leader['args'][0]
        self.assertIn('exec mpirun', script)
        with tempfile.TemporaryDirectory() as folder:
            for name, body in (('mpirun', 'printf "%s " "$@"'), ('timeout', ''), ('install', '')):
                program = Path(folder) / name
                program.write_text(f'#!/bin/bash\n{body}\n')
                program.chmod(0o755)
            done = subprocess.run([*leader['command'], script], capture_output=True, text=True, check=True, env={
                'PATH': f'{folder}:/usr/bin:/bin', 'TMPDIR': folder, 'LWS_GROUP_SIZE': '3',
                'LWS_LEADER_ADDRESS': 'nvllm-group-0.nvllm-group.default'})
        self.assertIn('-n 3 --host nvllm-group-0.nvllm-group.default:1,nvllm-group-0-1.nvllm-group.default:1,'
                      'nvllm-group-0-2.nvllm-group.default:1 ', done.stdout)
        self.assertIn('--tp 3', done.stdout)

    def test_scripts_in_manifests_are_scripts(self):
        for name in ('leader', 'worker'):
            _, container = containers('group.yaml')[name]
            subprocess.run(['bash', '-n', '-c', container['args'][0]], check=True)

    def test_the_router_is_that_of_the_example_with_other_servers(self):
        config, = of_kind('replicas.yaml', 'ConfigMap')
        text = config['data']['haproxy.cfg']
        example = [line.strip() for line in Path('examples/replicas/haproxy.cfg').read_text().splitlines()]
        lines = [line.strip() for line in text.splitlines()]
        for line in example:
            if line and not line.startswith(('#', 'server ')):
                self.assertIn(line, lines)
        program = shutil.which('haproxy') or shutil.which('haproxy', path='/usr/sbin')
        if not program:
            self.skipTest('needs haproxy (Debian: the package haproxy)')
        with tempfile.NamedTemporaryFile('w', suffix='.cfg') as file:
            file.write(text)
            file.flush()
            done = subprocess.run([program, '-c', '-f', file.name], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


    def test_the_router_passes_tokens_on_at_once(self):
        # Without the option the kernel keeps what HAProxy forwards of a stream for up to 200 ms.
        self.assertIn('\n  option http-no-delay\n', Path('examples/replicas/haproxy.cfg').read_text())


class SlurmTest(unittest.TestCase):
    def test_scripts_are_scripts_with_one_task_on_each_node(self):
        for script in ('replicas.sbatch', 'group.sbatch'):
            subprocess.run(['bash', '-n', str(SLURM / script)], check=True)
            self.assertIn('\n#SBATCH --ntasks-per-node=1\n', (SLURM / script).read_text())

    def run_script(self, name, folder, **variables):
        """What it wrote, with programs that print their arguments in place of Slurm's and ours."""
        for program, body in (('srun', 'echo srun "$@"; sleep 1'), ('scontrol', 'printf "node1\\nnode2\\n"'),
                              ('haproxy', 'cat "$3"; exec sleep 60')):
            (Path(folder) / program).write_text(f'#!/bin/bash\n{body}\n')
            (Path(folder) / program).chmod(0o755)
        return subprocess.run(['bash', str(SLURM / name), '--tp', '4'], capture_output=True, text=True, timeout=60,
                              check=False, env={'PATH': f'{folder}:/usr/bin:/bin', 'TMPDIR': folder,
                                                'SLURM_JOB_NODELIST': 'node[1-2]', 'SLURM_JOB_ID': '7',
                                                **variables})

    def test_the_group_is_started_through_pmix_and_passes_options_on(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script('group.sbatch', folder, MODEL='/m', INPUT='in', OUTPUT='out')
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn('--mpi=pmix --kill-on-bad-exit=1', done.stdout)
            self.assertIn('--model /m --device cpu --input in --output out --resume --tp 4', done.stdout)
            missing = self.run_script('group.sbatch', folder, MODEL='/m')
            self.assertNotEqual(missing.returncode, 0)
            self.assertIn('INPUT', missing.stderr)

    def test_replicas_are_independent_and_the_router_knows_their_nodes(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script('replicas.sbatch', folder, MODEL='/m', HAPROXY_CFG='examples/replicas/haproxy.cfg',
                                   PORT='8123', ROUTER_PORT='8100')
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn('--mpi=none --kill-on-bad-exit=0', done.stdout)
            self.assertIn('--port 8123 --shutdown-timeout 45 --tp 4', done.stdout)
            self.assertIn('bind :8100', done.stdout)
            servers = re.findall(r'^  server (.*)$', done.stdout, re.MULTILINE)
            self.assertEqual(servers, ['node1 node1:8123', 'node2 node2:8123'])
            self.assertEqual([path.name for path in Path(folder).glob('tmp.*')], [])


if __name__ == '__main__':
    unittest_report.main('__main__')
